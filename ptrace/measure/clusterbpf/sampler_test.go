package clusterbpf

import (
	"errors"
	"io/fs"
	"slices"
	"testing"
)

// check skips a test where the programs cannot be loaded, and prints the reason.
func check(t *testing.T) {
	t.Helper()
	if err := Check(); errors.Is(err, ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) { check(t) }

func TestParseProcessors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"0": {0}, "0-1": {0, 1}, "0,2-4,9": {0, 2, 3, 4, 9}} {
		if got, err := parseProcessors(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "a", "1-", "3-1", "-1", "0-99999999"} {
		if got, err := parseProcessors(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestParseRejectsShortRecords(t *testing.T) {
	t.Parallel()
	var r Record
	for _, n := range []int{0, 1, 47} {
		if err := r.parse(make([]byte, n)); err == nil {
			t.Errorf("%d bytes are a record", n)
		}
	}
	p := make([]byte, 48) // kind 0, so that a stack has to follow
	if err := r.parse(p); err == nil {
		t.Error("a record without a stack is complete")
	}
	p[0] = byte(OffEnd)
	if err := r.parse(p); err != nil || r.Kind != OffEnd {
		t.Errorf("%v, %v", r.Kind, err)
	}
}
