package runningplan

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"time"

	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/pg/plan"
)

const (
	storeFolder = "pg_stat_backtrace-plans"
	// kindOfPlans and kindOfFailures are buildcache.Key.Kind of calibrations, and of failed calibrations.
	kindOfPlans, kindOfFailures = "plans", "plansfailed"
)

// Store keeps the results of calibrations by build-id. It trusts only its own user's files.
type Store struct {
	// Dir is a cache of this user; "" means that nothing is kept.
	Dir string

	worker int // its process, 0 for a store of this user
}

// WorkerStore returns the results of a worker for reading. Dir is its Store.Dir, as the worker sees it, and pid the worker's
// process. The files are read with the rights of that process, and are as true as its server.
func WorkerStore(pid int, dir string) Store { return Store{Dir: dir, worker: pid} }

// folder returns the folder of the results.
func (s Store) folder() buildcache.Folder {
	if s.Dir == "" {
		return ""
	}
	return buildcache.Folder(filepath.Join(s.Dir, storeFolder))
}

// storeKey has everything that a result depends on: the build, and the layout that was proven.
func storeKey(build string, major int) buildcache.Key {
	return buildcache.Key{Kind: kindOfPlans, Build: build, Detail: strconv.Itoa(major) + " " + plan.Fingerprint(major)}
}

// Load returns the proof for a build, nil if there is none. A file that another user could have written, or that is of
// another layout, is ignored.
func (s Store) Load(build string, major int) *plan.Proof {
	data := s.load(storeKey(build, major))
	var found *plan.Proof
	if data == nil || json.Unmarshal(data, &found) != nil {
		return nil
	}
	return found
}

// Save keeps a calibration. The file appears when it is complete.
func (s Store) Save(c *Calibration) error {
	if s.Dir == "" || s.worker != 0 {
		return errors.New("there is no folder for it")
	}
	if !buildcache.IsBuildID(c.Build) {
		return errors.New("the server's program has no build-id")
	}
	data, err := json.Marshal(c.Proof)
	if err != nil {
		return err
	}
	return s.folder().Save(storeKey(c.Build, c.Major), data)
}

// Failure is a calibration that failed.
type Failure struct {
	// Time is when it failed, and Next when the worker tries again.
	Time   time.Time `json:"time"`
	Next   time.Time `json:"next"`
	Reason string    `json:"reason"`
}

// failureKey has the last failure of a build, whatever the layout.
func failureKey(build string, major int) buildcache.Key {
	return buildcache.Key{Kind: kindOfFailures, Build: build, Detail: strconv.Itoa(major)}
}

// SaveFailure keeps the last failure of a build's calibration.
func (s Store) SaveFailure(build string, major int, f *Failure) error {
	if s.Dir == "" || s.worker != 0 || !buildcache.IsBuildID(build) {
		return nil
	}
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return s.folder().Save(failureKey(build, major), data)
}

// LoadFailure returns the last failure of a build's calibration, nil if there is none.
func (s Store) LoadFailure(build string, major int) *Failure {
	var found *Failure
	if data := s.load(failureKey(build, major)); data == nil || json.Unmarshal(data, &found) != nil {
		return nil
	}
	return found
}

func (s Store) load(k buildcache.Key) []byte {
	if s.worker != 0 {
		root := filepath.Join("/proc", strconv.Itoa(s.worker), "root")
		if data := buildcache.Folder(filepath.Join(root, string(s.folder()))).LoadForeign(k); s.Dir != "" && data != nil {
			return data
		}
	}
	// The kernel shows the root directory of a worker with more rights than this process to root only.
	return s.folder().Load(k)
}
