package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"time"
)

// gaps reads the output of spin.c: every moment in which the target itself noticed that it did not run. This measures
// the pause from the side of the target, independent of the tool's own clock.
type gaps struct{ file *os.File }

const (
	gapsHeader = 16 // bytes before the ring
	gapSize    = 16
)

func openGaps(ctx context.Context, path string) (*gaps, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if file, err := os.Open(path); err == nil {
			g := &gaps{file}
			if g.count() > 0 { // the first tick of the timer makes a gap
				return g, nil
			}
			g.close()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the loop measured nothing: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

func (g *gaps) close() { _ = g.file.Close() }

// count is the number of gaps so far.
func (g *gaps) count() uint64 {
	var word [8]byte
	if _, err := g.file.ReadAt(word[:], 0); err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(word[:])
}

// since returns the lengths in microseconds of all gaps after the first n, longest first. If the ring was
// overwritten, it returns the remaining gaps.
func (g *gaps) since(n uint64) ([]float64, error) {
	data, err := os.ReadFile(g.file.Name())
	if err != nil {
		return nil, fmt.Errorf("gaps: %w", err)
	}
	ring := uint64(len(data)-gapsHeader) / gapSize
	count := g.count()
	if count > ring {
		n = max(n, count-ring)
	}
	var lengths []float64
	for ; n < count; n++ {
		at := gapsHeader + int(n%ring)*gapSize
		lengths = append(lengths, float64(binary.NativeEndian.Uint64(data[at+8:]))/1000)
	}
	slices.Sort(lengths)
	slices.Reverse(lengths)
	return lengths, nil
}
