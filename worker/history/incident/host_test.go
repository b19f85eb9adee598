package incident

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// affinityVariable has the test's program print the number of processors of hostOf.
const affinityVariable = "PGSB_TEST_HOST_AFFINITY"

// TestHostWithoutAffinity expects the host's processors in a process that may run on one processor only.
func TestHostWithoutAffinity(t *testing.T) {
	if os.Getenv(affinityVariable) != "" {
		fmt.Println(hostOf(t.Context(), nil).Processors) // for the test that started this process
		os.Exit(0)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil || set.Count() < 2 {
		t.Skipf("%d processors, %v", set.Count(), err)
	}
	one := 0
	for !set.IsSet(one) {
		one++
	}
	c := exec.Command("taskset", "-c", strconv.Itoa(one), exe, "-test.run", "^TestHostWithoutAffinity$")
	c.Env = append(os.Environ(), affinityVariable+"=1")
	out, err := c.Output()
	if want := fmt.Sprintln(hostOf(t.Context(), nil).Processors); err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}
