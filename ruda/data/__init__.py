"""Data sets: images of digits, from installed packages, from files, or downloaded."""

from ruda.data.images import Images, digits, mnist
from ruda.data.loader import batches

__all__ = ["Images", "batches", "digits", "mnist"]
