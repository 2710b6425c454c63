"""The repository's Compose files, really started: images under the names that they ask for, and what runs on them.

- `images`: pulls an image, or makes one of that name from packages where no registry of images can be reached
- `test_image`: builds `Dockerfile`, and runs commands in its containers
- `test_compose`: starts `docker-compose.yml` and `examples/compose.yaml` unchanged
"""
