"""Tables whose manifests, manifest lists and metadata files are as other writers make them."""
