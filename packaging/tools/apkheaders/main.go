// Apkheaders checks that apk accepts the tar headers of Alpine packages. apk reads only octal numbers, but archive/tar
// writes a number that is too large for its field in binary.
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	for _, name := range os.Args[1:] {
		if err := check(name); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
	}
}

func check(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	return Headers(z)
}

// block is the unit of tar.
const block = 512

// fields are the numbers of a header that apk reads: offset and length.
var fields = map[string][2]int{
	"mode": {100, 8}, "uid": {108, 8}, "gid": {116, 8}, "size": {124, 12}, "mtime": {136, 12}, "checksum": {148, 8},
	"major": {329, 8}, "minor": {337, 8},
}

// Headers reads tar archives, one behind the other. It returns an error for the first header with a number that is not
// octal.
func Headers(r io.Reader) error {
	var header [block]byte
	for {
		if _, err := io.ReadFull(r, header[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a header: %w", err)
		}
		if header == [block]byte{} {
			continue // the end of an archive
		}
		name := text(header[:100])
		numbers := make(map[string]int64)
		for field, at := range fields {
			digits := strings.Trim(text(header[at[0]:at[0]+at[1]]), " ")
			if digits == "" {
				continue
			}
			n, err := strconv.ParseInt(digits, 8, 64)
			if err != nil {
				return fmt.Errorf("%s of %q is no octal number: %q", field, name, digits)
			}
			numbers[field] = n
		}
		content := (numbers["size"] + block - 1) / block * block
		if _, err := io.CopyN(io.Discard, r, content); err != nil {
			return fmt.Errorf("read %q: %w", name, err)
		}
	}
}

// text returns a field up to its first zero byte.
func text(field []byte) string {
	s, _, _ := strings.Cut(string(field), "\x00")
	return s
}
