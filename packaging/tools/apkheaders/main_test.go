package main

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"strings"
	"testing"
)

// TestHeaders reads two archives, one behind the other, with a header in each of which Go writes a number in binary.
func TestHeaders(t *testing.T) {
	archive := func(mode int64) *bytes.Buffer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range []*tar.Header{
			{Name: "file", Mode: 0o644, Size: 3, Format: tar.FormatGNU},
			{Name: "dir/", Mode: mode, Typeflag: tar.TypeDir, Format: tar.FormatGNU},
		} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte("abc")[:h.Size]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	both := archive(0o755)
	both.Write(archive(0o700).Bytes())
	if err := Headers(both); err != nil {
		t.Errorf("octal numbers: %v", err)
	}
	both = archive(0o755)
	both.Write(archive(int64(fs.ModeDir) | 0o755).Bytes())
	if err := Headers(both); err == nil || !strings.Contains(err.Error(), `mode of "dir/"`) {
		t.Errorf("a mode with Go's bit for directories: %v", err)
	}
}
