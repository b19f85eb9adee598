// Package brotli takes the place of github.com/andybalholm/brotli in the program: go.mod replaces it. parquet-go refers to
// that module for a compression that the recorder does not write. Its tables and its code were a megabyte of the program,
// and unpacked whatever a forged file had in it.
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

// Writer fails.
type Writer struct{}

// NewWriterOptions returns a Writer that fails.
func NewWriterOptions(io.Writer, WriterOptions) *Writer { return &Writer{} }

// Write returns ErrNotSupported.
func (*Writer) Write([]byte) (int, error) { return 0, ErrNotSupported }

// Close returns ErrNotSupported.
func (*Writer) Close() error { return ErrNotSupported }

// Reset does nothing.
func (*Writer) Reset(io.Writer) {}

// Reader fails.
type Reader struct{}

// NewReader returns a Reader that fails.
func NewReader(io.Reader) *Reader { return &Reader{} }

// Read returns ErrNotSupported.
func (*Reader) Read([]byte) (int, error) { return 0, ErrNotSupported }

// Reset does nothing.
func (*Reader) Reset(io.Reader) error { return nil }
