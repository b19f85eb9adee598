package levels

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
)

// Server describes a server's program: its version and the link-time addresses of its variables.
type Server struct {
	// Major is the major version.
	Major int

	layout *layout
	waits  map[uint32]string
	// error_context_stack, debug_query_string and my_wait_event_info; the function GetDatabaseEncoding, 0 if unknown;
	// the setting track_activities and the variable MyBEEntry, 0 if unknown.
	list, query, wait, getEncoding, activities, entry uint64
	// encoding is the address of the variable DatabaseEncoding, or 0 before the first read of a process.
	encoding atomic.Uint64
	// seen caches, for each function that was examined by its machine code, which callback it is.
	seen verdicts
}

// ErrNotServer means that a program is not a PostgreSQL server of a version that this package knows.
var ErrNotServer = errors.New("not a known PostgreSQL server")

// An UnknownVersionError means that a program has the variables of a PostgreSQL server, but its version is unknown to
// this package. errors.Is(err, ErrNotServer) holds.
type UnknownVersionError struct {
	Reason string // for example "its data contain no version"
}

func (e *UnknownVersionError) Error() string { return "PostgreSQL server not recognised: " + e.Reason }

// Unwrap makes the error match ErrNotServer.
func (e *UnknownVersionError) Unwrap() error { return ErrNotServer }

// Variables returns the symbols that NewServer needs. Every server exports them, stripped or not.
func Variables() []string {
	return []string{"error_context_stack", "debug_query_string", "my_wait_event_info", "GetDatabaseEncoding",
		"pgstat_track_activities", "MyBEEntry"}
}

// NewServer identifies a program by its symbols and by the version in its data. symbol returns the link-time address of
// a symbol; 0: there is none. NewServer searches the data of segments, because a program may have no sections or rename
// them. The error is ErrNotServer, an UnknownVersionError or the reader's.
func NewServer(symbol func(name string) uint64, data io.Reader) (*Server, error) {
	s := &Server{
		list: symbol("error_context_stack"), query: symbol("debug_query_string"),
		wait: symbol("my_wait_event_info"), getEncoding: symbol("GetDatabaseEncoding"),
		activities: symbol("pgstat_track_activities"), entry: symbol("MyBEEntry"),
	}
	if s.list == 0 || s.query == 0 || s.wait == 0 {
		return nil, ErrNotServer
	}
	var err error
	if s.Major, err = major(data); err != nil {
		return nil, err
	}
	if s.layout = layoutOf(s.Major); s.layout == nil {
		return nil, &UnknownVersionError{fmt.Sprintf("version %d is not supported", s.Major)}
	}
	s.waits, err = waitEvents(s.Major)
	return s, err
}

// major finds the version in the text that "postgres --version" prints (PG_BACKEND_VERSIONSTR). If a program has two
// different versions, major returns an UnknownVersionError. The data are some MB, and are read in pieces.
func major(data io.Reader) (int, error) {
	buf := make([]byte, 64<<10)
	found, kept := 0, 0
	for {
		n, err := io.ReadFull(data, buf[kept:])
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return 0, fmt.Errorf("program data: %w", err)
		}
		piece := buf[:kept+n]
		if found, piece, err = majorIn(piece, found, last); err != nil {
			return 0, err
		}
		switch {
		case last && found == 0:
			return 0, &UnknownVersionError{"its data contain no version"}
		case last:
			return found, nil
		}
		kept = copy(buf, piece)
	}
}

// majorIn searches one piece of the data. found is the version in the pieces before it, or 0. majorIn returns the
// version found so far, and the end of the piece, which the caller puts before the next piece. last is set for the last
// piece.
func majorIn(piece []byte, found int, last bool) (int, []byte, error) {
	const mark, digits = "postgres (PostgreSQL) ", 4
	for {
		at := bytes.Index(piece, []byte(mark))
		if at < 0 || !last && at > len(piece)-len(mark)-digits {
			return found, piece[max(0, len(piece)-len(mark)-digits+1):], nil
		}
		piece = piece[at+len(mark):]
		v := number(piece[:min(len(piece), digits)])
		if v != 0 && found != 0 && v != found {
			return 0, nil, &UnknownVersionError{fmt.Sprintf("its data contain the versions %d and %d", found, v)}
		}
		if v != 0 {
			found = v
		}
	}
}

// number reads the decimal number at the start of text. It returns 0 if there is none, or if the number is not
// followed by text.
func number(text []byte) int {
	end := bytes.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.Atoi(string(text[:max(end, 0)]))
	if err != nil {
		return 0
	}
	return n
}
