package profilefmt_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/profilefmt"
)

func TestReadFolded(t *testing.T) {
	const folded = "client_backend;main;work 4\nclient_backend;main;x_[i] 1\n"
	p, err := profilefmt.Read(strings.NewReader("# made by hand\n\n" + folded))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := profilefmt.Write(&out, p, profilefmt.Options{Format: profilefmt.Folded}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), strings.ReplaceAll(folded, "_[i]", ""); got != want {
		t.Errorf("read and written: %q, want %q", got, want)
	}
}

// TestReadPprof reads what Write wrote, compressed and not.
func TestReadPprof(t *testing.T) {
	b := odd()
	var plain bytes.Buffer
	if err := b.WriteUncompressed(&plain); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"compressed": b.write(t, profilefmt.Options{Format: profilefmt.Pprof}), "plain": plain.String(),
	} {
		p, err := profilefmt.Read(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(p.Sample) != len(b.Sample) || p.Sample[0].Label["database"][0] != "app" {
			t.Errorf("%s: %d samples", name, len(p.Sample))
		}
	}
}

// TestReadHostile: Read refuses files that are not profiles, and files that would fill the memory.
func TestReadHostile(t *testing.T) {
	bomb := func(write func(io.Writer)) string {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		write(zip)
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	repeat := func(b []byte, n int) func(io.Writer) {
		return func(w io.Writer) {
			for range n {
				_, _ = w.Write(bytes.Repeat(b, 1<<10))
			}
		}
	}
	for name, c := range map[string]struct{ input, want string }{
		"empty":           {"", "the file is empty"},
		"text":            {"hello\n", "neither a pprof file nor folded stacks"},
		"damaged gzip":    {"\x1f\x8b\x08\x00", "unexpected EOF"},
		"large":           {bomb(repeat([]byte{0}, 70_000)), "more than 64 MB"},
		"empty samples":   {bomb(repeat([]byte{0x12, 0x00}, 9<<10)), "more than 8388608 parts"},
		"empty strings":   {bomb(repeat([]byte{0x32, 0x00}, 9<<10)), "more than 8388608 parts"},
		"empty labels":    {bomb(repeat([]byte{0x12, 0x04, 0x1a, 0x00, 0x1a, 0x00}, 5<<10)), "more than 8388608 parts"},
		"truncated":       {"\x12\x7f", "malformed"},
		"no sample types": {"\x32\x00", "no sample type"},
	} {
		_, err := profilefmt.Read(strings.NewReader(c.input))
		if !errors.Is(err, profilefmt.ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// FuzzRead: whatever is read can be written in every format.
func FuzzRead(f *testing.F) {
	var plain bytes.Buffer
	if err := odd().WriteUncompressed(&plain); err != nil {
		f.Fatal(err)
	}
	f.Add(plain.Bytes())
	f.Add([]byte("a;b 1\n;; -5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := profilefmt.Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		if p, err = profile.Merge([]*profile.Profile{p, p}); err != nil {
			return
		}
		for _, format := range profilefmt.Formats() {
			var out bytes.Buffer
			if err := profilefmt.Write(&out, p, profilefmt.Options{Format: format, Root: []string{"database"}}); err != nil {
				t.Fatalf("%s: %v", format, err)
			}
			switch format {
			case profilefmt.Speedscope:
				checkSpeedscope(t, out.String())
			case profilefmt.Pprof:
				if _, err := profile.Parse(&out); err != nil {
					t.Fatalf("pprof: %v", err)
				}
			case profilefmt.HTML:
				if n := strings.Count(strings.ToLower(out.String()), "</script"); n != 2 {
					t.Fatalf("the page ends %d scripts", n)
				}
			}
		}
	})
}
