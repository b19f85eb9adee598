package levels

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
)

// Server is what is known of a server's program: its version and where its variables lie, as link-time addresses.
type Server struct {
	// Major is the major version.
	Major int

	layout *layout
	waits  map[uint32]string
	// error_context_stack, debug_query_string and my_wait_event_info; the function GetDatabaseEncoding, 0 if unknown; the
	// setting track_activities, 0 if unknown.
	list, query, wait, getEncoding, activities uint64
	// encoding is the variable DatabaseEncoding, 0 until a process was looked at.
	encoding atomic.Uint64
}

// ErrNotServer means that a program is not a PostgreSQL server of a version that this package knows.
var ErrNotServer = errors.New("not a known PostgreSQL server")

// Variables are the symbols that NewServer asks for: exported by every server, stripped or not.
func Variables() []string {
	return []string{"error_context_stack", "debug_query_string", "my_wait_event_info", "GetDatabaseEncoding",
		"pgstat_track_activities"}
}

// NewServer knows a program by its symbols and by what its read-only data says of its version.
func NewServer(symbol func(name string) uint64, rodata []byte) (*Server, error) {
	s := &Server{
		list: symbol("error_context_stack"), query: symbol("debug_query_string"),
		wait: symbol("my_wait_event_info"), getEncoding: symbol("GetDatabaseEncoding"),
		activities: symbol("pgstat_track_activities"),
	}
	if s.list == 0 || s.query == 0 || s.wait == 0 {
		return nil, ErrNotServer
	}
	var ok bool
	if s.Major, ok = major(rodata); !ok {
		return nil, fmt.Errorf("%w: its version is not in its data", ErrNotServer)
	}
	if s.layout = layouts[s.Major]; s.layout == nil {
		return nil, fmt.Errorf("%w: version %d", ErrNotServer, s.Major)
	}
	var err error
	s.waits, err = waitEvents(s.Major)
	return s, err
}

// major finds the version in what "postgres --version" prints (PG_BACKEND_VERSIONSTR). A program that has it twice
// and differently is not believed.
func major(rodata []byte) (int, bool) {
	mark := []byte("postgres (PostgreSQL) ")
	found := 0
	for {
		_, rest, ok := bytes.Cut(rodata, mark)
		if !ok {
			return found, found != 0
		}
		rodata = rest
		end := bytes.IndexFunc(rest[:min(len(rest), 4)], func(r rune) bool { return r < '0' || r > '9' })
		if end <= 0 {
			continue
		}
		n, err := strconv.Atoi(string(rest[:end]))
		if err != nil || found != 0 && found != n {
			return 0, false
		}
		found = n
	}
}
