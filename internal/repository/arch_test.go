package repository

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestArchTests expects that make check-arch runs tests only in folders that it has filled, and that the tests which it
// names are there. On another architecture the error would show after an hour.
func TestArchTests(t *testing.T) {
	t.Parallel()
	const script = top + "/scripts/arch-tests.sh"
	text := read(t, script)
	built := regexp.MustCompile(`(?m)for package in ([a-z/ ]+);|arch_test_binary .* ([a-z]+(?:/[a-z]+)*)$`)
	var packages []string
	for _, m := range built.FindAllStringSubmatch(text, -1) {
		packages = append(packages, strings.Fields(m[1]+" "+m[2])...)
	}
	runs := regexp.MustCompile(`(?m)cd /check/(\S+) && .*\./tests(.*)$`).FindAllStringSubmatch(text, -1)
	if len(packages) < 8 || len(runs) < 8 {
		t.Fatalf("%s builds the tests of %v and runs %q", script, packages, runs)
	}
	for _, run := range runs {
		if !slices.Contains(packages, run[1]) {
			t.Errorf("%s runs tests in %s, and does not build them", script, run[1])
			continue
		}
		tests := testsOf(t, run[1])
		for _, name := range namesIn(run[2]) {
			if !slices.Contains(tests, name) {
				t.Errorf("%s names %s, which is not in %s", script, name, run[1])
			}
		}
	}
}

// namesIn returns the tests that -test.run or -test.skip name, without subtests.
func namesIn(options string) (names []string) {
	for _, m := range regexp.MustCompile(`'\^(Test\w*)(?:\(([\w|]+)\)(\?)?)?\$'`).FindAllStringSubmatch(options, -1) {
		if m[3] != "" || m[2] == "" {
			names = append(names, m[1])
		}
		for end := range strings.SplitSeq(m[2], "|") {
			if end != "" {
				names = append(names, m[1]+end)
			}
		}
	}
	return names
}

// testsOf returns the tests of a package.
func testsOf(t *testing.T, folder string) (tests []string) {
	t.Helper()
	files, err := filepath.Glob(top + "/" + folder + "/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", folder, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, m[1])
		}
	}
	return tests
}
