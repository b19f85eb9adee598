// Package brotli replaces github.com/andybalholm/brotli by a directive in go.mod. parquet-go refers to that module for a
// compression that the recorder does not write. The tables and the code of that module were a megabyte of the program. They also
// would have unpacked any content of a forged file.
package brotli

import (
	"errors"
	"io"
)

// ErrNotSupported is the error of every call.
var ErrNotSupported = errors.New("brotli compression is not supported")

// WriterOptions has the options that parquet-go sets.
type WriterOptions struct {
	Quality int
	LGWin   int
}

// Writer fails at each write.
type Writer struct{}

// NewWriterOptions returns a Writer that fails.
func NewWriterOptions(io.Writer, WriterOptions) *Writer { return &Writer{} }

// Write returns ErrNotSupported.
func (*Writer) Write([]byte) (int, error) { return 0, ErrNotSupported }

// Close returns ErrNotSupported.
func (*Writer) Close() error { return ErrNotSupported }

// Reset does nothing.
func (*Writer) Reset(io.Writer) {}

// Reader fails at each read.
type Reader struct{}

// NewReader returns a Reader that fails.
func NewReader(io.Reader) *Reader { return &Reader{} }

// Read returns ErrNotSupported.
func (*Reader) Read([]byte) (int, error) { return 0, ErrNotSupported }

// Reset does nothing.
func (*Reader) Reset(io.Reader) error { return nil }
