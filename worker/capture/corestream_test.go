package capture_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// compressors make each format in which cores are kept.
var compressors = map[string]func(w io.Writer) io.WriteCloser{
	"gz": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"zst": func(w io.Writer) io.WriteCloser {
		e, err := zstd.NewWriter(w)
		if err != nil {
			panic(err)
		}
		return e
	},
	"lz4": func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) },
}

// functionNames are the functions of a stack, in one line.
func functionNames(th *backtrace.Thread) string {
	var list []string
	for i := range th.Frames {
		list = append(list, th.Frames[i].Name())
	}
	return strings.Join(list, " ")
}

// TestCompressedCore reads a core in each format, whole and truncated in its last third. The stack must be the same,
// and the truncation must be reported.
func TestCompressedCore(t *testing.T) {
	dir := t.TempDir()
	exe := unpack(t, dir, "riscv64-cfi")
	file := unpack(t, dir, "riscv64-cfi.core")
	o := capture.CoreOptions{Exe: exe}
	plain, err := capture.ReadCore(file, o)
	if err != nil {
		t.Fatal(err)
	}
	want := functionNames(&plain.Trace.Threads[0])
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for format, compressor := range compressors {
		var packed bytes.Buffer
		w := compressor(&packed)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		// What follows is lost when the file is cut. It does not compress.
		if _, err := w.Write(bytes.Repeat(text, 1)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		name := file + "." + format
		for _, cut := range []bool{false, true} {
			length := packed.Len()
			if cut {
				length--
			}
			if err := os.WriteFile(name, packed.Bytes()[:length], 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := capture.ReadCore(name, o)
			if err != nil {
				t.Fatalf("%s, cut %t: %v", format, cut, err)
			}
			if got := functionNames(&c.Trace.Threads[0]); got != want && !cut {
				t.Errorf("%s: %s, want %s", format, got, want)
			}
			if said := fmt.Sprint(c.Refused); strings.Contains(said, "the data end early") != cut {
				t.Errorf("%s, cut %t: %s", format, cut, said)
			}
		}
	}
}

// TestCoreFromPipe reads a core from the standard input.
func TestCoreFromPipe(t *testing.T) {
	dir := t.TempDir()
	exe, file := unpack(t, dir, "riscv64-cfi"), unpack(t, dir, "riscv64-cfi.core")
	plain, err := capture.ReadCore(file, capture.CoreOptions{Exe: exe})
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = r
	defer func() { os.Stdin = stdin }()
	go func() {
		defer func() { _ = w.Close() }()
		text, _ := os.ReadFile(file)
		_, _ = w.Write(text)
	}()
	c, err := capture.ReadCore("-", capture.CoreOptions{Exe: exe})
	if err != nil || functionNames(&c.Trace.Threads[0]) != functionNames(&plain.Trace.Threads[0]) {
		t.Errorf("%v, %+v", err, c)
	}
}

// TestZeros refuses a small file that expands to zeros without end, and takes no space for it.
func TestZeros(t *testing.T) {
	name := filepath.Join(t.TempDir(), "core.zst")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(f)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 512 {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := capture.ReadCore(name, capture.CoreOptions{}); err == nil || !strings.Contains(err.Error(), "bad magic") {
		t.Errorf("half a gigabyte of zeros: %v", err)
	}
}

// TestCoreOfGDB reads cores written by gcore: a whole one, one truncated after the stack, which loses the section
// headers, and one of a process with executable data (READ_IMPLIES_EXEC).
func TestCoreOfGDB(t *testing.T) {
	for _, tool := range []string{"gdb", "setarch"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	exe := compile(t, "testdata/nest.c")
	for _, test := range []struct {
		name    string
		command []string
	}{
		{"plain", []string{exe}}, {"READ_IMPLIES_EXEC", []string{"setarch", "x86_64", "-X", exe}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pid := start(t, test.command[0], test.command[1:]...)
			file := filepath.Join(t.TempDir(), "core")
			command(t, "gdb", "-batch", "-p", strconv.Itoa(pid), "-ex", "gcore "+file)
			c, err := capture.ReadCore(file, capture.CoreOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := functionNames(&c.Trace.Threads[0])
			if len(c.Refused) > 0 || !strings.Contains(want, "main") {
				t.Fatalf("refused %v, %s", c.Refused, want)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(file, info.Size()-100); err != nil { // a part of the section headers
				t.Fatal(err)
			}
			if c, err = capture.ReadCore(file, capture.CoreOptions{}); err != nil || functionNames(&c.Trace.Threads[0]) != want {
				t.Errorf("without its section headers: %v, %+v", err, c)
			}
		})
	}
}
