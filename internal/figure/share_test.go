package figure_test

import (
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// TestShare counts the selected items: a third by default, all in full runs, and all of them with three seeds.
func TestShare(t *testing.T) {
	for _, name := range []string{"PGSB_TEST_FULL", "PGSB_ORACLE_SLOW", "STACKORACLE_RANDOM"} {
		t.Setenv(name, "")
	}
	var seen [9]int
	for _, seed := range []string{"7", "8", "9"} {
		t.Setenv("PGSB_TEST_SEED", seed)
		selected := figure.Share(t, 3)
		for i := range seen {
			if selected(i) {
				seen[i]++
			}
		}
	}
	if seen != [9]int{1, 1, 1, 1, 1, 1, 1, 1, 1} {
		t.Errorf("three seeds select %v", seen)
	}
	t.Setenv("PGSB_TEST_FULL", "1")
	selected := figure.Share(t, 3)
	for i := range seen {
		if !selected(i) {
			t.Errorf("a full run leaves out %d", i)
		}
	}
}
