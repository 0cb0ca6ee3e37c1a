// filled by the reader
