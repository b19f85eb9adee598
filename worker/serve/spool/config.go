package spool

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/limits"
)

// Errors for callers to branch on. Returned errors wrap them.
var (
	// ErrLocked means that another worker serves this data directory.
	ErrLocked = errors.New("another worker serves this data directory")
	// ErrUnsafe means that a directory or file is not private to this user.
	ErrUnsafe = errors.New("not private to this user")
	// ErrLost means that the spool directory was removed, moved or is no longer writable. A new Open makes a new
	// directory.
	ErrLost = errors.New("spool directory lost")
	// ErrReadOnly means that this process may not write to the data directory, because its file system is read-only.
	ErrReadOnly = errors.New("the data directory is read-only for this process")
	// ErrBadRequest means that a file in the spool is not a request of this protocol.
	ErrBadRequest = errors.New("bad request")
	// ErrFull means that the file system of the spool is full.
	ErrFull = errors.New("file system full")
	// ErrNoWorker means that the data directory contains no pid file of a worker.
	ErrNoWorker = errors.New("no worker")
)

// Config configures a spool. Every field except DataDir may have its zero value, which is the default.
type Config struct {
	// DataDir is the path by which this process reaches the server's data directory.
	DataDir string
	// Base is the directory in which the spool directory is made; empty: /dev/shm if it is a tmpfs with room, otherwise
	// os.TempDir.
	Base string
	// Root is the prefix for the server's paths in this process: /proc/PID/root if the server has another root
	// directory. The spool directory is made below it, so that the server sees it.
	Root string
	// Postmaster returns the server's postmaster, by its pid in this process's PID namespace. A server with the same root
	// directory may have other files mounted at some paths. Postmaster is called repeatedly, because the server may restart. A
	// nil Postmaster means that the server sees the same files as this process.
	Postmaster func() int
	// Witness returns a process that lives as long as the server, if the server cannot see this process; pid 0: the server
	// sees this process. The pid is as the server sees it, and start is the start time in clock ticks since boot. The pid
	// file then names the witness in place of the worker. Witness is called repeatedly, because a restarted server may have
	// another view of /proc. A nil Witness means that the server sees this process.
	Witness func() (pid int, start uint64)
	// Running reports whether the server runs. Meanwhile the spool repairs its files in the data directory. While the server does not
	// run, an administrator may be removing the directory. Running is called repeatedly. A nil Running means that the server runs.
	Running func() bool
	// Version is the worker's version, for readers of the pid file.
	Version string
	// Verbs are the commands that the worker accepts. The extension refuses other commands.
	Verbs []string
	// Plans is the directory with the comparisons of plans with EXPLAIN; "": none. See Info.Plans.
	Plans string
	// Recorder describes the worker's recorder; nil: there is no description. It is called every two seconds.
	Recorder func() Recorder
	// Concurrency is the largest number of handlers that run at the same time; 0 means limits.Handlers. Of Concurrency and of
	// Pending, a quarter is reserved for superusers, and each other role gets at most half.
	Concurrency int
	// Pending is the largest number of requests that run or wait; 0 means limits.Pending. The answer to further requests is an
	// error.
	Pending int
	// Log gets errors that no caller gets, such as invalid files in the directory, or answers that could not be written. As
	// a caller can cause such an error with each request, there may be many. The zero value discards them.
	Log zerolog.Logger
}

// prefix returns the prefix for a path of the server.
func (c *Config) prefix(path string) string {
	if c.Root != "" || c.Postmaster == nil {
		return c.Root
	}
	return rootfs.Prefix(fmt.Sprintf("/proc/%d/root", c.Postmaster()), path)
}

const (
	// answerLifetime is the time for which an answer is kept. A call in SQL looks for its answer until one second after its
	// deadline.
	answerLifetime = 30 * time.Second
	// housekeeping is the interval of checkPeriodically, which finds changes that cause no inotify events.
	housekeeping = 2 * time.Second
	// settle is the age at which an incomplete request counts as invalid.
	settle = 5 * time.Second
	// reserve is the number of bytes that must be free in the file system; with less, the spool accepts no requests.
	reserve = 64 << 10
)

// answerRoom returns the limits of unfetched answers, in bytes, on a file system of this size; 0: the file system has no size
// limit. On a small file system, the answers may take a quarter of its size. Each role has room for the largest answer.
func answerRoom(size int64) limits.Shares {
	total := int64(limits.UnfetchedBytes)
	if size > 0 {
		total = min(total, size/4)
	}
	return limits.Shares{Total: total, Ordinary: total - total/4, Role: max(total/4, onDisk(limits.MaxAnswer))}
}

func (c Config) concurrency() int {
	if c.Concurrency > 0 {
		return c.Concurrency
	}
	return limits.Handlers
}

func (c Config) pending() int {
	if c.Pending > 0 {
		return c.Pending
	}
	return limits.Pending
}

func (c Config) report(err error) {
	if err != nil {
		c.Log.Warn().Err(err).Msg("spool")
	}
}
