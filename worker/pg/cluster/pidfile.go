package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxPIDFile bounds postmaster.pid, which has eight lines, two of them paths.
const maxPIDFile = 3 * 4096

var errBadPIDFile = errors.New("malformed postmaster.pid")

// pidFile is the content of postmaster.pid. src/include/utils/pidfile.h describes the lines.
type pidFile struct {
	pid       int       // negative: a stand-alone backend (single-user mode), which is not a postmaster
	dataDir   string    // the path with which the server was started
	started   time.Time // whole seconds
	port      int       // 0 if not written yet
	socketDir string    // first one; may be empty, relative to the data directory, or the name of an abstract socket
	address   string    // first of listen_addresses on which the server listens; empty: none, or not written yet
	shmID     uint64    // System V segment that all processes of the server map; 0 if not written yet
	opening   bool      // the server has not written its state yet, which it does when all its sockets are open
	stopping  bool      // the server is shutting down, and may wait for its clients
}

// parsePIDFile parses the content of postmaster.pid. The server writes the first three lines at once and the others later, so
// only the first three are required. Errors repeat no content, because a user may have put a secret file in place of
// postmaster.pid.
func parsePIDFile(data []byte) (pidFile, error) {
	if len(data) > maxPIDFile {
		return pidFile{}, fmt.Errorf("%w: more than %d bytes", errBadPIDFile, maxPIDFile)
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) < 4 { // three lines and what follows the last newline
		return pidFile{}, fmt.Errorf("%w: %d lines", errBadPIDFile, len(lines)-1)
	}
	line := func(number int) string {
		if number > len(lines) {
			return ""
		}
		return strings.TrimSpace(lines[number-1])
	}
	pid, err := strconv.ParseInt(line(1), 10, 32)
	if err != nil || pid == 0 || pid == math.MinInt32 {
		return pidFile{}, fmt.Errorf("%w: line 1 is not a process id", errBadPIDFile)
	}
	seconds, err := strconv.ParseInt(line(3), 10, 64)
	if err != nil || seconds < 0 {
		return pidFile{}, fmt.Errorf("%w: line 3 is not a start time", errBadPIDFile)
	}
	f := pidFile{pid: int(pid), dataDir: lines[1], started: time.Unix(seconds, 0)}
	if f.dataDir == "" || bytes.IndexByte(data, 0) >= 0 {
		return pidFile{}, fmt.Errorf("%w: line 2 is not a data directory", errBadPIDFile)
	}
	if port, err := strconv.ParseUint(line(4), 10, 16); err == nil {
		f.port = int(port)
		f.socketDir, f.address = line(5), line(6)
	}
	if key := strings.Fields(line(7)); len(key) == 2 {
		if id, err := strconv.ParseUint(key[1], 10, 64); err == nil {
			f.shmID = id
		}
	}
	f.opening, f.stopping = line(8) == "", line(8) == "stopping"
	return f, nil
}
