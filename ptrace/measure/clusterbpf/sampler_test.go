package clusterbpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
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

// affinityVariable has the test's program print what Processors returns.
const affinityVariable = "PGSB_TEST_AFFINITY"

// TestProcessorsWithoutAffinity expects the same number in a process that may run on one processor only.
func TestProcessorsWithoutAffinity(t *testing.T) {
	if os.Getenv(affinityVariable) != "" {
		fmt.Println(Processors()) // for the test that started this process
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
	c := exec.Command("taskset", "-c", strconv.Itoa(one), exe, "-test.run", "^TestProcessorsWithoutAffinity$")
	c.Env = append(os.Environ(), affinityVariable+"=1")
	out, err := c.Output()
	if want := fmt.Sprintln(Processors()); err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
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
