"""icesize with each line of Spark that it supports, in fresh environments made for it."""
