package runningplan

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"

	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/pg/plan"
)

const (
	storeFolder = "pg_stat_backtrace-plans"
	// kindOfPlans is buildcache.Key.Kind of calibrations.
	kindOfPlans = "plans"
)

// Store keeps the results of calibrations by build-id. It trusts only its own user's files.
type Store struct {
	// Dir is a cache of this user; "" means that nothing is kept.
	Dir string
}

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
	data := s.folder().Load(storeKey(build, major))
	var found *plan.Proof
	if data == nil || json.Unmarshal(data, &found) != nil {
		return nil
	}
	return found
}

// Save keeps a calibration. The file appears when it is complete.
func (s Store) Save(c *Calibration) error {
	if s.Dir == "" {
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
