"""What can be found in a text, one family a file. Pure: each knows its forms and its arithmetic, not what is done."""
