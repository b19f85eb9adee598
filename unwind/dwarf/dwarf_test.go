package dwarf_test

import (
	"strconv"
	"testing"
)

func hexNumber(t testing.TB, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
