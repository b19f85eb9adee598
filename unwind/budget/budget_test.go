package budget_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/budget"
)

func TestRate(t *testing.T) {
	r := budget.Rate{Base: 10, Factor: 3, Most: 100}
	for input, want := range map[int64]int64{-1: 10, 0: 10, 1: 13, 30: 100, 31: 100, math.MaxInt64: 100} {
		if got := r.Of(input); got != want {
			t.Errorf("%d bytes of input: %d, want %d", input, got, want)
		}
	}
	if got := budget.Output.Of(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("the limit of the largest input is %d", got)
	}
}

// TestBudget: the input extends the limit as it is read, and a refused charge does not count.
func TestBudget(t *testing.T) {
	b := budget.New(budget.Rate{Base: 10, Factor: 2, Most: 30}, "memory")
	if err := b.Charge(10, "names"); err != nil {
		t.Fatal(err)
	}
	err := b.Charge(1, "names")
	want := "out of proportion to the input: names would need more than 10 bytes of memory: the limit is 10 bytes and " +
		"2 times the 0 bytes of the input"
	if !errors.Is(err, budget.ErrExceeded) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := io.ReadAll(budget.Reader(strings.NewReader("12345"), b, nil)); err != nil {
		t.Fatal(err)
	}
	if err := b.Charge(10, "names"); err != nil || b.Used() != 20 {
		t.Errorf("after 5 bytes: %v, %d used", err, b.Used())
	}
	b.Credit(1000)
	if err := b.Charge(math.MaxInt64, "names"); !errors.Is(err, budget.ErrExceeded) || b.Used() != 20 {
		t.Errorf("the largest charge: %v, %d used", err, b.Used())
	}
	if err := b.Charge(11, "names"); err == nil || !strings.HasSuffix(err.Error(), "more than 30 bytes of memory") {
		t.Errorf("beyond the largest limit: %v", err)
	}
	if err := b.Charge(-5, "names"); err != nil || b.Used() != 20 {
		t.Errorf("a negative charge, which would make room for others: %v, %d used", err, b.Used())
	}
	var none *budget.Budget
	none.Credit(1)
	if err := none.Charge(math.MaxInt64, ""); err != nil || none.Used() != 0 {
		t.Errorf("no budget: %v", err)
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := budget.New(budget.Rate{Base: 3, Factor: 1, Most: 100}, "output").Writer(&out)
	_, err1 := io.WriteString(w, "abc")
	_, err2 := io.WriteString(w, "d")
	if err1 != nil || !errors.Is(err2, budget.ErrExceeded) || out.String() != "abc" {
		t.Errorf("%v, %v, %q", err1, err2, out.String())
	}
}
