package capture_test

import (
	"strings"
	"testing"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// TestMovedCode checks code that a program has moved to memory without a file. It gets the image's names as long as
// all bytes are equal, else none. (Package stackoracle compares such stacks with gdb's.)
func TestMovedCode(t *testing.T) {
	exe := compile(t, "../../internal/stackoracle/testdata/moved.c", "-O2", "-fcf-protection=none")
	c := capturer(t)
	for _, altered := range []bool{false, true} {
		var args []string
		if altered {
			args = []string{"altered"}
		}
		pid := start(t, exe, args...)
		for range 2 { // the second time uses the cache
			th := take(t, c, pid, capture.Options{})
			var in []string
			for _, f := range th.Frames {
				if f.Module == "moved" || f.Module == "[anon]" {
					in = append(in, f.Module+" "+f.Function)
				}
			}
			got := strings.Join(in, ", ")
			switch {
			case !altered && !strings.HasPrefix(got, "moved spot, moved inner, moved outer, moved main"):
				t.Errorf("moved: %s", got)
			case altered && got != "[anon] ":
				t.Errorf("altered: %s", got)
			}
		}
		images, err := symbolize.Images(pid, nil)
		if err != nil {
			t.Fatal(err)
		}
		listed := false
		for i := range images {
			listed = listed || images[i].Path == exe && !images[i].InMemory
		}
		if listed == altered {
			t.Errorf("altered: %v, listed: %v", altered, listed)
		}
	}
}
