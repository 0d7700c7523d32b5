"""Copies of arrays and hierarchies with other chunks, codecs or formats, in bounded memory."""
