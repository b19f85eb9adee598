package figure

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Share returns a function that selects every nth item of a long comparison by its index. PGSB_TEST_SEED chooses the
// first item. Without this variable, a random number chooses it, and the test prints the number. If PGSB_TEST_FULL,
// PGSB_ORACLE_SLOW or STACKORACLE_RANDOM is set, the function selects all items.
func Share(t *testing.T, n int) (selected func(index int) bool) {
	t.Helper()
	for _, full := range []string{"PGSB_TEST_FULL", "PGSB_ORACLE_SLOW", "STACKORACLE_RANDOM"} {
		if os.Getenv(full) != "" {
			return func(int) bool { return true }
		}
	}
	seed, err := strconv.Atoi(os.Getenv("PGSB_TEST_SEED"))
	if err != nil {
		seed = rand.IntN(1 << 20)
	}
	t.Logf("one of %d, PGSB_TEST_SEED=%d", n, seed)
	return func(index int) bool { return (index+seed)%n == 0 }
}
