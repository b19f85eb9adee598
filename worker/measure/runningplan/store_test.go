package runningplan_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pg_stat_backtrace/worker/measure/runningplan"
	"pg_stat_backtrace/worker/pg/plan"
)

// TestStore keeps a result of one build and major version. The tests of package buildcache change files.
func TestStore(t *testing.T) {
	t.Parallel()
	const build = "0123456789abcdef"
	s := runningplan.Store{Dir: filepath.Join(t.TempDir(), "cache")}
	c := &runningplan.Calibration{Build: build, Major: 15, Proof: &plan.Proof{Kinds: []string{"SeqScan"}, Fields: []string{"Alias"}}}
	if s.Load(build, 15) != nil {
		t.Fatal("a result without a file")
	}
	if err := s.Save(c); err != nil {
		t.Fatal(err)
	}
	if p := s.Load(build, 15); p == nil || !slices.Equal(p.Fields, c.Proof.Fields) || !slices.Equal(p.Kinds, c.Proof.Kinds) {
		t.Fatalf("got %+v", p)
	}
	if s.Load(build, 16) != nil || s.Load("fedcba9876543210", 15) != nil || s.Load("../"+build, 15) != nil {
		t.Error("a result of another build")
	}
	if err := os.Chmod(filepath.Join(s.Dir, "pg_stat_backtrace-plans"), 0o777); err != nil {
		t.Fatal(err)
	}
	if s.Load(build, 15) != nil || s.Save(c) == nil {
		t.Error("a folder that others can write is used")
	}
	for _, none := range []runningplan.Calibration{{Build: "", Major: 15, Proof: c.Proof}, {Build: "../..", Major: 15, Proof: c.Proof}} {
		if s.Save(&none) == nil {
			t.Errorf("build-id %q is accepted", none.Build)
		}
	}
	if (runningplan.Store{}).Save(c) == nil || (runningplan.Store{}).Load(build, 15) != nil {
		t.Error("a store without a folder keeps a result")
	}
}
