package verb

import (
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/limits"
)

// TestBucketsWithEscapes leaves out texts that are too long because a database cannot have their characters.
func TestBucketsWithEscapes(t *testing.T) {
	t.Parallel()
	b := newBuckets(time.Minute)
	for query := range int64(700) {
		one := bucketValue{samples: 1, weight: 1, query: strings.Repeat("ж", 3000)}
		b.add(b.begin(5), sampleClass{waitType: "Lock"}, query+1, one, stackCount{})
	}
	for encoding, shortened := range map[string]bool{encodingUTF8: false, "LATIN1": true} {
		rows, size := b.rows(0, encoding), 0
		for _, row := range rows[1:] {
			size += cellsSize(row, encoding)
		}
		if len(rows) != 701 || size > limits.MaxAnswer || strings.Contains(rows[0][0], "left out") != shortened {
			t.Errorf("%s: %d rows of %d bytes, notice %q", encoding, len(rows), size, rows[0][0])
		}
	}
}

// TestBuckets fills more buckets than an answer has room for, and one bucket beyond all room: no sample is lost silently.
func TestBuckets(t *testing.T) {
	t.Parallel()
	const minute = int64(60e6)
	sample := bucketValue{samples: 1, weight: 1, query: "q"}
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).UnixMicro()
	b := newBuckets(time.Minute)
	for at := range int64(30) {
		for query := range int64(1000) {
			b.add(b.begin(start+at*minute+5), sampleClass{waitType: "Lock"}, query+1, sample, stackCount{7, 1})
		}
	}
	rows := b.rows(0, encodingUTF8)
	next := time.UnixMicro(start + 19*minute).UTC().Format("2006-01-02 15:04:05")
	if len(rows) != 19_001 || !strings.Contains(rows[0][0], "continue with "+next) {
		t.Errorf("%d rows, notice %q, want the first one that is left out at %s", len(rows), rows[0][0], next)
	}
	one := newBuckets(time.Hour)
	for query := range int64(50_000) {
		one.add(one.begin(start+query), sampleClass{waitType: "Lock", waitEvent: "tuple"}, query+1, sample, stackCount{})
	}
	var samples int64
	for _, v := range one.m {
		samples += v.samples
	}
	if rows := one.rows(0, encodingUTF8); samples != 50_000 || len(rows) > maxHistoryRows+1 || !strings.Contains(rows[0][0], "too many rows") {
		t.Errorf("%d samples, %d rows, notice %q", samples, len(rows), rows[0][0])
	}
	// Samples that are not in the order of time: two buckets are left out, one after the other, and the first stays whole.
	mixed := newBuckets(time.Minute)
	for query := range int64(12_000) {
		for at := range int64(3) {
			mixed.add(mixed.begin(start+at*minute), sampleClass{waitType: "Lock"}, query+1, sample, stackCount{})
		}
	}
	if rows := mixed.rows(0, encodingUTF8); len(rows) != 12_001 || mixed.merged {
		t.Errorf("%d rows, merged %t, notice %q", len(rows), mixed.merged, rows[0][0])
	}
}
