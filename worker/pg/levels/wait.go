package levels

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// waits has the names of the wait events of each version, in the order of their numbers. There is one line for each
// class, and "-" means that a number has no name. pgstat_get_wait_event_type and pgstat_get_wait_event return the
// same names.
//
//go:embed waits/*.txt
var waits embed.FS

// waitClasses are the classes by the highest byte of an event's number (wait_classes.h).
//
//nolint:gochecknoglobals // a table
var waitClasses = map[uint32]string{
	0x01: "LWLock", 0x03: "Lock", 0x04: "BufferPin", 0x05: "Activity", 0x06: "Client", 0x07: "Extension",
	0x08: "IPC", 0x09: "Timeout", 0x0a: "IO", 0x0b: "InjectionPoint",
}

// waitClass returns the name of a class in a version, or "". From 19 on, the class of buffer pins also has the locks of
// buffer contents, and is called Buffer.
func waitClass(major int, number uint32) string {
	const buffer, renamed = 0x04, 19
	if number == buffer && major >= renamed {
		return "Buffer"
	}
	return waitClasses[number]
}

// WaitTypes returns the types of wait events of all versions, in alphabetical order: LWLock, IO and others.
func WaitTypes() []string {
	types := map[string]bool{}
	for number := range waitClasses {
		for _, major := range []int{14, 19} {
			types[waitClass(major, number)] = true
		}
	}
	return slices.Sorted(maps.Keys(types))
}

// waitEvents returns the names of a version's wait events, by number.
func waitEvents(major int) (map[uint32]string, error) {
	data, err := waits.ReadFile(fmt.Sprintf("waits/%d.txt", major))
	if err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrNotServer, major, err)
	}
	numbers := make(map[string]uint32)
	for number := range waitClasses {
		numbers[waitClass(major, number)] = number
	}
	names := make(map[uint32]string)
	var class, id uint32
	for word := range strings.FieldsSeq(string(data)) {
		if name, ok := strings.CutSuffix(word, ":"); ok {
			class, id = numbers[name]<<24, 0
			continue
		}
		if word != "-" {
			names[class|id] = word
		}
		id++
	}
	return names, nil
}

// wait reads the event to which my_wait_event_info points.
func (r *reader) wait() backtrace.Wait {
	p, ok := r.word(r.bias + r.server.wait)
	if !ok {
		return backtrace.Wait{}
	}
	n, ok := r.number(p)
	if !ok {
		return backtrace.Wait{}
	}
	return r.server.waitEvent(uint32(n))
}

// waitEvent names an event. Events and lock tranches of extensions have only a number.
func (s *Server) waitEvent(n uint32) backtrace.Wait {
	const idMask, unused = 0x0000ffff, 0x00ff0000
	class := waitClass(s.Major, n>>24)
	if class == "" || n&unused != 0 {
		return backtrace.Wait{}
	}
	if name := s.waits[n]; name != "" {
		return backtrace.Wait{Class: class, Event: name}
	}
	return backtrace.Wait{Class: class, Event: fmt.Sprintf("#%d", n&idMask)}
}
