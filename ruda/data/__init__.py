"""Data sets: images of digits and texts, from installed packages, from files, or downloaded."""

from ruda.data.download import download
from ruda.data.images import Images, digits, mnist
from ruda.data.loader import batches
from ruda.data.text import Text, passages, text

__all__ = ["Images", "Text", "batches", "digits", "download", "mnist", "passages", "text"]
