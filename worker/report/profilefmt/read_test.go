package profilefmt_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/report/profilefmt"
)

func TestReadFolded(t *testing.T) {
	const folded = "client_backend;main;work 4\nclient_backend;main;x_[i] 1\n"
	p, err := profilefmt.Read(strings.NewReader("# made by hand\n\n"+folded), nil)
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

// TestReadPprof reads the output of Write, compressed and uncompressed.
func TestReadPprof(t *testing.T) {
	b := odd()
	var plain bytes.Buffer
	if err := b.WriteUncompressed(&plain); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"compressed": b.write(t, profilefmt.Options{Format: profilefmt.Pprof}), "plain": plain.String(),
	} {
		p, err := profilefmt.Read(strings.NewReader(text), nil)
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
	packed := func(field byte) []byte { // a sample with 1,000 location ids or values
		return append([]byte{0x12, 0xeb, 0x07, field<<3 | 2, 0xe8, 0x07}, make([]byte, 1000)...)
	}
	for name, c := range map[string]struct{ input, want string }{
		"packed ids":      {bomb(repeat(packed(1), 8)), "samples would need more than"},
		"packed values":   {bomb(repeat(packed(2), 8)), "samples would need more than"},
		"sample types":    {strings.Repeat("\x0a\x00", 1001) + "\x32\x00", "more than 1000 sample types"},
		"empty":           {"", "the file is empty"},
		"text":            {"hello\n", "neither folded stacks (line 1 has no count) nor a pprof file ("},
		"damaged gzip":    {"\x1f\x8b\x08\x00", "unexpected EOF"},
		"large":           {strings.Repeat("\x00", 65<<20), "more than 64 MB"},
		"empty samples":   {bomb(repeat([]byte{0x12, 0x00}, 2<<10)), "samples would need more than"},
		"numbers":         {bomb(repeat([]byte{0x12, 0x04, 0x08, 1, 0x10, 1}, 1<<10)), "samples would need more than"},
		"empty mappings":  {bomb(repeat([]byte{0x1a, 0x00}, 2<<10)), "mappings would need more than"},
		"empty locations": {bomb(repeat([]byte{0x22, 0x00}, 2<<10)), "locations would need more than"},
		"empty functions": {bomb(repeat([]byte{0x2a, 0x00}, 2<<10)), "functions would need more than"},
		"empty strings":   {bomb(repeat([]byte{0x32, 0x00}, 2<<10)), "strings would need more than"},
		"empty types":     {bomb(repeat([]byte{0x0a, 0x00}, 2<<10)), "sample types would need more than"},
		"comments":        {bomb(repeat([]byte{0x68, 0x01}, 4<<10)), "comments would need more than"},
		"empty lines":     {bomb(repeat([]byte{0x22, 0x04, 0x22, 0x00, 0x22, 0x00}, 2<<10)), "would need more than"},
		"empty labels":    {bomb(repeat([]byte{0x12, 0x04, 0x1a, 0x00, 0x1a, 0x00}, 2<<10)), "would need more than"},
		"folded":          {bomb(repeat([]byte("a 1\n"), 2<<10)), "stacks would need more than"},
		"folded depth":    {bomb(repeat([]byte("a;"), 6<<10)), "neither folded stacks (line 1 has no count) nor a pprof"},
		"truncated":       {"\x12\x7f", "malformed"},
		"no sample types": {"\x32\x00", "no sample type"},
	} {
		_, err := profilefmt.Read(strings.NewReader(c.input), budget.New(budget.Memory, "memory"))
		if !errors.Is(err, profilefmt.ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestReadComments: a line that begins with "#" is a stack if it has a count and more than a comment's form.
func TestReadComments(t *testing.T) {
	p, err := profilefmt.Read(strings.NewReader("# total 5\n#\n# 7\n#0 main;work 3\n#x 4\n#no count\n# a;b 2\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := profilefmt.Write(&out, p, profilefmt.Options{Format: profilefmt.Folded}); err != nil {
		t.Fatal(err)
	}
	if want := "#0_main;work 3\n#_a;b 2\n#x 4\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// TestReadLarge: a profile with more location ids than messages may have is within the limits.
func TestReadLarge(t *testing.T) {
	var file bytes.Buffer
	file.WriteString("\x0a\x00\x32\x00\x22\x03\x08\xc8\x01") // a sample type, a string, location 200
	const samples, depth = 20_000, 500
	sample := append([]byte{0x12, 0xee, 0x07, 0x0a, 0xe8, 0x07}, bytes.Repeat([]byte{0xc8, 0x01}, depth)...)
	file.Write(bytes.Repeat(append(sample, 0x12, 0x01, 0x01), samples))
	p, err := profilefmt.Read(&file, budget.New(budget.Memory, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Sample) != samples || len(p.Sample[samples-1].Location) != depth {
		t.Errorf("%d samples", len(p.Sample))
	}
	for _, format := range profilefmt.Formats() {
		if err := profilefmt.Write(io.Discard, p, profilefmt.Options{Format: format}); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// allocated returns the number of bytes that a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestReadManyFrames: the frames of a line are counted before they are made.
func TestReadManyFrames(t *testing.T) {
	const size = 6 << 20
	var line bytes.Buffer
	zip := gzip.NewWriter(&line)
	if _, err := io.WriteString(zip, strings.Repeat(";", size)+" 1"); err != nil || zip.Close() != nil {
		t.Fatal(err)
	}
	used := allocated(func() {
		if _, err := profilefmt.Read(&line, budget.New(budget.Memory, "memory")); !errors.Is(err, profilefmt.ErrInput) {
			t.Error(err)
		}
	})
	if used > 10*size { // a slice of all frames has 16 times the size
		t.Errorf("a line of %d bytes needs %d", size, used)
	}
}

// FuzzRead: every profile that was read can be written in every format.
func FuzzRead(f *testing.F) {
	var plain bytes.Buffer
	if err := odd().WriteUncompressed(&plain); err != nil {
		f.Fatal(err)
	}
	f.Add(plain.Bytes())
	f.Add([]byte("a;b 1\n;; -5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := profilefmt.Read(bytes.NewReader(data), budget.New(budget.Memory, "memory"))
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
			case profilefmt.JSON:
				checkJSON(t, p, out.String())
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

// TestFoldedHash: a line that begins with # and ends with a count is a stack, as for flamegraph.pl.
func TestFoldedHash(t *testing.T) {
	p, err := profilefmt.Read(strings.NewReader("# made by hand\n#\n#<Class:0x1>;call 3\n  #inner 2\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := profilefmt.Write(&out, p, profilefmt.Options{Format: profilefmt.Folded}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "#<Class:0x1>;call 3\n#inner 2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
