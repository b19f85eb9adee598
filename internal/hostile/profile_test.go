package hostile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// zip compresses a file.
func zip(t *testing.T, fill func(io.Writer)) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// repeat writes a piece many times.
func repeat(piece []byte, times int) func(io.Writer) {
	return func(w io.Writer) {
		const block = 1 << 16
		many := bytes.Repeat(piece, max(1, block/len(piece)))
		for left := times * len(piece); left > 0; left -= len(many) {
			_, _ = w.Write(many[:min(left, len(many))])
		}
	}
}

// message encodes a field with a length, as a protocol buffer does.
func message(field uint64, parts ...[]byte) []byte {
	content := bytes.Join(parts, nil)
	b := binary.AppendUvarint(nil, field<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(content))), content...)
}

// number encodes a field with a number.
func number(field, value uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, field<<3), value)
}

// shared is a valid profile whose samples share one location with many lines. Each sample has another label n.
func shared(lines, samples int, name string) []byte {
	var b bytes.Buffer
	b.Write(message(1, number(1, 1), number(2, 2)))
	for _, text := range []string{"", "samples", "count", "n", name} {
		b.Write(message(6, []byte(text)))
	}
	b.Write(message(5, number(1, 1), number(2, 4)))
	b.Write(message(4, number(1, 1), bytes.Repeat(message(4, number(1, 1)), lines)))
	for i := range samples {
		b.Write(message(2, message(1, []byte{1}), message(2, []byte{1}), message(3, number(1, 3), number(3, uint64(i+1)))))
	}
	return b.Bytes()
}

// TestCounts: messages and numbers without content take one byte or two each, and less if they are compressed.
func TestCounts(t *testing.T) {
	t.Parallel()
	quick := []string{"mappings", "labels", "numbers", "strings", "folded stacks"}
	many := cases(1, 4) << 20
	for name, piece := range map[string][]byte{
		"sample types": message(1), "samples": message(2), "mappings": message(3), "locations": message(4),
		"functions": message(5), "strings": message(6), "period types": message(11), "comments": number(13, 1),
		"labels": message(2, message(3), message(3)), "lines": message(4, message(4), message(4)),
		"numbers": message(2, number(1, 1), number(2, 1)), "packed comments": message(13, make([]byte, 1000)),
		"packed ids": message(2, message(1, make([]byte, 1000))), "packed values": message(2, message(2, make([]byte, 1000))),
		"unknown fields": message(63), "unknown groups": {0x0b, 0x0c},
		"folded stacks": []byte("a 1\n"), "folded frames": []byte("a;"), "comments as text": []byte("#\n"),
	} {
		if !full() && !slices.Contains(quick, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "p.pb.gz", zip(t, repeat(piece, many/max(1, len(piece)/4))))
			if r := measure(t, budget.Memory, []string{file}, "report", file); full() && r.status != 1 {
				t.Errorf("status %d", r.status)
			}
		})
	}
}

// TestSharedStacks: a few kilobytes describe stacks of gigabytes, all together.
func TestSharedStacks(t *testing.T) {
	t.Parallel()
	deep := shared(1000, cases(2000, 20_000), strings.Repeat("x", 4000))
	flat := shared(1, 100_000, strings.Repeat("x", 4000))
	for _, c := range []struct {
		name string
		data []byte
	}{{"deep", deep}, {"flat", flat}} {
		for _, format := range profilefmt.Formats() {
			if !full() && (c.name == "flat" || format == profilefmt.Pprof) {
				continue
			}
			t.Run(c.name+" "+format, func(t *testing.T) {
				t.Parallel()
				file := write(t, "p.pb.gz", zip(t, func(w io.Writer) { _, _ = w.Write(c.data) }))
				args := []string{"report", file, "-f", format}
				if format != profilefmt.Pprof {
					args = append(args, "--group-by", "n")
				}
				measure(t, budget.Memory, []string{file}, args...)
			})
		}
	}
}

// TestMerge: the sum of many files needs no more than their sizes allow.
func TestMerge(t *testing.T) {
	onlyFull(t)
	file := write(t, "p.pb.gz", zip(t, func(w io.Writer) { _, _ = w.Write(shared(100, 10_000, "f")) }))
	args, files := []string{"report", "-f", "folded"}, []string{}
	for range 20 {
		args, files = append(args, file), append(files, file)
	}
	measure(t, budget.Memory, files, args...)
}

// TestExpansion: compressed repetition, also within itself.
func TestExpansion(t *testing.T) {
	onlyFull(t)
	zeros := zip(t, repeat(make([]byte, 1<<16), 1<<12)) // 256 MB
	for name, data := range map[string][]byte{
		"zeros": zeros, "zeros twice": zip(t, func(w io.Writer) { _, _ = w.Write(zeros) }),
		"members": bytes.Repeat(zip(t, repeat([]byte{0}, 1<<20)), 100),
		"text":    zip(t, repeat([]byte("x"), 1<<26)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "p.gz", data)
			if r := measure(t, budget.Memory, []string{file}, "report", file); full() && r.status != 1 {
				t.Errorf("status %d", r.status)
			}
		})
	}
}

// TestLabels: each sample has different labels, and long values.
func TestLabels(t *testing.T) {
	onlyFull(t)
	var b bytes.Buffer
	b.Write(message(1, number(1, 1), number(2, 2)))
	const keys = 20_000
	long := strings.Repeat("v", 100_000)
	for _, text := range []string{"", "samples", "count", long} {
		b.Write(message(6, []byte(text)))
	}
	for i := range keys {
		b.Write(message(6, fmt.Append(nil, "k", i)))
		b.Write(message(2, message(2, []byte{1}), message(3, number(1, uint64(i+4)), number(2, 3)),
			message(3, number(1, 4), number(2, 3))))
	}
	file := write(t, "p.pb.gz", zip(t, func(w io.Writer) { _, _ = w.Write(b.Bytes()) }))
	for _, args := range [][]string{
		{"report", file, "-f", "html"}, {"report", file, "-f", "pprof"}, {"report", file, file, "-f", "pprof"},
		{"report", file, "-f", "folded", "--group-by", "k0,k1"},
		{"report", file, "-f", "speedscope", "--group-by", "k0"},
	} {
		measure(t, budget.Memory, []string{file}, args...)
	}
}
