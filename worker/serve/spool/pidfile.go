package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
)

// pidName is the file in the data directory by which the server finds the worker. Its lines:
//
//	1  protocol version
//	2  PID of the worker
//	3  start time of the worker, clock ticks since boot (field 22 of /proc/PID/stat), because the kernel reuses PIDs
//	4  the data directory as the server names it, because a base backup may copy the file to a standby
//	5  version of the worker
//	6  spool directory
//	7  key XOR ipad, in hex
//	8  key XOR opad, in hex
//	9  the verbs that the worker accepts, separated by spaces; absent in version 1.0, whose verbs are "get log"
//	10 "outside", then PID and start time of the worker in the worker's own view. The line is empty if the server sees the
//	   worker under the same numbers. It is used if the worker is in another PID or time namespace, or if /proc hides processes
//	   (hidepid). Lines 2 and 3 then have the postmaster's numbers. The worker touches the file "ready" in the spool
//	   directory every two seconds. If that file is much older, the worker does not run. (Version 1.0 of the extension
//	   does not check this: there a call to a killed worker times out.)
//	11 path through which the server writes requests, see alias.go; empty if there is none
//	12 TID of a thread of the worker, and the time of its directory in /proc, see livenessthread.go. If the server finds
//	   another time, its /proc is another mount, and line 3 decides. Empty if line 10 is used; absent in version 1.0.
//	13 directory with the worker's comparisons of plans with EXPLAIN, as the worker sees it; empty if there is none
//
// Lines 1 to 5 are the same in every protocol version.
const (
	pidName = "pg_stat_backtrace.pid"
	maxPID  = 16384
)

// Info is the content of a worker's pid file.
type Info struct {
	// Protocol is the worker's protocol version, see the constant Protocol.
	Protocol int
	// PID and StartTime (clock ticks since boot) identify the worker's process.
	PID       int
	StartTime uint64
	// DataDir is the data directory as the server names it. If it is not the data directory of the reader's server, the pid
	// file is a copy, for example in a standby's data directory.
	DataDir string
	// Version is the worker's version. Dir is the worker's spool directory; empty: Protocol is another version.
	Version string
	Dir     string
	// Plans is the directory with the worker's comparisons of plans with EXPLAIN, as the worker sees it; "": none.
	Plans string
}

// Find reads the pid file of a data directory. The error wraps ErrNoWorker if the file is missing or cannot be read.
func Find(dataDir string) (Info, error) {
	path := filepath.Join(dataDir, pidName)
	data, err := rootfs.ReadIn(dataDir, pidName, maxPID)
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, fmt.Errorf("%w: %s does not exist", ErrNoWorker, path)
	} else if err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrNoWorker, err)
	}
	info, err := parseInfo(data)
	if err != nil {
		return Info{}, fmt.Errorf("%w: %s: %w", ErrNoWorker, path, err)
	}
	return info, nil
}

func parseInfo(data []byte) (Info, error) {
	if len(data) > maxPID {
		return Info{}, errors.New("too long")
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) < 6 {
		return Info{}, errors.New("too few lines")
	}
	protocol, err1 := strconv.ParseUint(lines[0], 10, 31)
	pid, err2 := strconv.ParseUint(lines[1], 10, 31)
	start, err3 := strconv.ParseUint(lines[2], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return Info{}, errors.New("lines 1 to 3 are not numbers") // without the errors, which have parts of the file's content
	}
	info := Info{Protocol: int(protocol), PID: int(pid), StartTime: start, DataDir: lines[3], Version: lines[4]}
	if protocol == Protocol {
		info.Dir = lines[5]
	}
	if len(lines) > 9 && strings.HasPrefix(lines[9], "outside ") {
		if _, err := fmt.Sscanf(lines[9], "outside %d %d", &info.PID, &info.StartTime); err != nil || info.PID <= 0 {
			return Info{}, errors.New("line 10 is not a process")
		}
	}
	if len(lines) > 12 && filepath.IsAbs(lines[12]) {
		info.Plans = lines[12]
	}
	return info, nil
}

// Alive reports whether the worker that wrote the pid file still runs: a process with its PID and its start time.
func (i Info) Alive() bool {
	return !process.ID{PID: i.PID, StartTime: i.StartTime}.Ended()
}

// contents returns the content of the pid file for this process.
func (s *Spool) contents() ([]byte, error) {
	stat, err := process.ReadStat(os.Getpid())
	if err != nil {
		return nil, err
	}
	inner, outer := s.keys.signing().blocks()
	light, err := livenessThread()
	if err != nil {
		return nil, err
	}
	pid, start, outside := os.Getpid(), stat.StartTime, ""
	if s.cfg.Witness != nil {
		if witness, since := s.cfg.Witness(); witness != 0 {
			outside, light = fmt.Sprintf("outside %d %d", pid, start), ""
			pid, start = witness, since
		}
	}
	var b bytes.Buffer
	plans := s.cfg.Plans
	if oneLine(plans) != plans {
		plans = ""
	}
	fmt.Fprintf(&b, "%d\n%d\n%d\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n", Protocol, pid, start,
		serverName(s.data), oneLine(s.cfg.Version), s.dir.name, inner, outer,
		strings.Join(s.cfg.Verbs, " "), outside, s.alias(), light, plans)
	return b.Bytes(), nil
}

// publish writes the pid file unless it is already correct. It writes a temporary file and renames it, so that
// readers see only complete files.
func (s *Spool) publish() error {
	contents, err := s.contents()
	if err != nil {
		return err
	}
	path := s.data.Join(pidName)
	if present, err := rootfs.ReadFile(path, maxPID); err == nil && bytes.Equal(present, contents) {
		return nil
	}
	temporary := path + ".tmp"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pid file: %w", err)
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	_, err = f.Write(contents)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pid file: %w", err), os.Remove(temporary))
	}
	return nil
}

// withdraw removes the pid file and the alias (see alias.go), each only if it belongs to this spool.
func (s *Spool) withdraw() error {
	path := s.data.Join(pidName)
	info, err := Find(s.data.Path())
	if err != nil || info.PID != os.Getpid() || info.Dir != s.dir.name {
		return nil //nolint:nilerr // missing, or it belongs to another spool
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pid file: %w", err)
	}
	return s.dropAlias()
}

// serverName returns the data directory as its server names it (GUC data_directory). This is the second line of
// postmaster.pid, or the absolute path if no server runs.
func serverName(data *rootfs.Dir) string {
	if text, err := rootfs.ReadFile(data.Join("postmaster.pid"), maxPID); err == nil {
		if lines := strings.SplitN(string(text), "\n", 3); len(lines) == 3 && filepath.IsAbs(lines[1]) {
			return lines[1]
		}
	}
	if path, err := filepath.Abs(data.Name()); err == nil {
		return path
	}
	return data.Name()
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
