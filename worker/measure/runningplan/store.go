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

// Store keeps the results of calibrations by build-id. It reads only files that no other user can have written.
type Store struct {
	// Dir is the cache directory of this user; "" means that nothing is kept.
	Dir string

	worker int // process id of the worker that has written the store; 0: a store of this user
}

// WorkerStore returns the store of a worker, for reading only. dir is the worker's Store.Dir in the worker's mount namespace, and
// pid the worker's process id. The files are read through the root directory of that process, and are as trustworthy as the worker.
func WorkerStore(pid int, dir string) Store { return Store{Dir: dir, worker: pid} }

func (s Store) folder() buildcache.Folder {
	if s.Dir == "" {
		return ""
	}
	return buildcache.Folder(filepath.Join(s.Dir, storeFolder))
}

// storeKey returns the key of a calibration. It has everything on which the result depends: the build, and the layout of plans that
// this version knows.
func storeKey(build string, major int) buildcache.Key {
	return buildcache.Key{Kind: kindOfPlans, Build: build, Detail: strconv.Itoa(major) + " " + plan.Fingerprint(major)}
}

// Load returns the proof for a build, nil if there is none. It ignores a file that another user could have written, or that is
// for another layout.
func (s Store) Load(build string, major int) *plan.Proof {
	data := s.load(storeKey(build, major))
	var found *plan.Proof
	if data == nil || json.Unmarshal(data, &found) != nil {
		return nil
	}
	return found
}

// Save keeps the proof of a calibration. The file is complete as soon as it exists. Save returns an error for a store without Dir,
// for a WorkerStore, and for a program without a build-id.
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
	// Time is the time of the failure. Next is the time of the next attempt.
	Time   time.Time `json:"time"`
	Next   time.Time `json:"next"`
	Reason string    `json:"reason"`
}

// failureKey returns the key of the last failure of a build. Unlike storeKey, it does not depend on the layout of plans.
func failureKey(build string, major int) buildcache.Key {
	return buildcache.Key{Kind: kindOfFailures, Build: build, Detail: strconv.Itoa(major)}
}

// SaveFailure keeps the last failure of a build's calibration. Where Save would return an error for the store or the build-id, it
// does nothing.
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
	// If the worker has more rights than this process, only root can use the worker's root directory. Try this process's own root.
	return s.folder().Load(k)
}
