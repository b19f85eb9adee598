package spool

import (
	"encoding/json"
	"fmt"
	"time"

	"pg_stat_backtrace/worker/host/rootfs"
)

// recorderName is the file in the spool directory that describes the worker's recorder. SQL does not read it.
const (
	recorderName = "recorder"
	maxRecorder  = 64 << 10
)

// Recorder describes the recorder of a worker, for the command doctor.
type Recorder struct {
	// Dir is the directory of the history as the worker sees it; empty: the worker records nothing.
	Dir string `json:"directory"`
	// Lost is the number of sweeps that were lost between Since and Until; 0: none since the start of the worker. Further losses within
	// a minute belong to the same span. Reason is the last error, and Remedy what an administrator can do; empty: not known.
	Lost   uint64    `json:"lost_sweeps"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Remedy string    `json:"remedy,omitempty"`
	// Failing is set if no sweep was written after the last loss.
	Failing bool `json:"failing"`
}

// ReadRecorder reads what a running worker says about its recorder. dir is the spool directory of the worker as this process reaches it.
// The error wraps fs.ErrNotExist if the worker has not written the file, as before version 1.2.
func ReadRecorder(dir string) (r Recorder, err error) {
	data, err := rootfs.ReadIn(dir, recorderName, maxRecorder)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s/%s: %w", dir, recorderName, err)
	}
	return r, nil
}

// publishRecorder writes the file for ReadRecorder, if its content has changed.
func (s *Spool) publishRecorder() error {
	if s.cfg.Recorder == nil {
		return nil
	}
	r := s.cfg.Recorder()
	if s.recorder != nil && *s.recorder == r {
		return nil
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = s.write(recorderName, data)
	}
	if err != nil {
		return fmt.Errorf("describing the recorder: %w", err)
	}
	s.recorder = &r
	return nil
}
