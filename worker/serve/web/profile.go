package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"
)

// The modes of a profile.
const (
	ModeCPU    = "cpu"
	ModeOffCPU = "offcpu"
	ModeWall   = "wall"
)

// ProfileRequest has the parameters of a profile.
type ProfileRequest struct {
	Duration time.Duration
	// Mode is one of the modes above.
	Mode string
	// QueryID limits the profile to samples of one query, by the query id of pg_stat_statements; nil: all samples.
	QueryID *int64
	// PIDs limits the profile to these processes, by the pids that the server uses; empty: all processes.
	PIDs []int
}

// ErrUnavailable means that profiles are impossible here and now. The text says why.
var ErrUnavailable = errors.New("cannot make a profile")

// ErrNoProcess means that the server has none of the processes of the request. The text names them.
var ErrNoProcess = errors.New("the server has no such process")

// Bounds of a request for a profile.
const (
	defaultSeconds = 30
	maxSeconds     = 300
	maxPIDs        = 64
	// collectGrace is the time that a profile may take after its duration, to find the names of its frames.
	collectGrace = 30 * time.Second
)

// profileParameters are the parameters of a request for a profile.
func profileParameters() []string { return []string{"seconds", "mode", "query_id", "pid", "format"} }

// parseProfile parses the parameters of a request. It also returns all parameters. It refuses unknown and repeated parameters,
// because a profile without the selection that a client meant would mislead. It ignores debug and gc, which Go's own handler takes.
func parseProfile(query string) (ProfileRequest, url.Values, error) {
	q, err := url.ParseQuery(query)
	if err != nil { // a parameter that cannot be read must not become a default
		return ProfileRequest{}, nil, errors.New("the parameters cannot be read; separate them by &")
	}
	for name, values := range q {
		switch {
		case name == "debug" || name == "gc":
		case !slices.Contains(profileParameters(), name):
			return ProfileRequest{}, nil, fmt.Errorf("there is no parameter %.60q; the parameters are %s",
				name, strings.Join(profileParameters(), ", "))
		case len(values) > 1 && name != "pid":
			return ProfileRequest{}, nil, fmt.Errorf("the parameter %s may be given once", name)
		}
	}
	r, err := readProfile(q)
	return r, q, err
}

func readProfile(q url.Values) (ProfileRequest, error) {
	r := ProfileRequest{Duration: defaultSeconds * time.Second, Mode: ModeCPU}
	if text := q.Get("seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds > 0 && seconds <= maxSeconds) {
			return r, fmt.Errorf("seconds must be above 0 and at most %d", maxSeconds)
		}
		r.Duration = max(time.Duration(seconds*float64(time.Second)), 1) // at least 1 ns, because 0 would mean no limit
	}
	if text := q.Get("mode"); text != "" {
		if !slices.Contains([]string{ModeCPU, ModeOffCPU, ModeWall}, text) {
			return r, errors.New("mode must be cpu, offcpu or wall")
		}
		r.Mode = text
	}
	if text := q.Get("query_id"); text != "" {
		id, err := queryID(text)
		if err != nil {
			return r, errors.New("query_id must be a query id of pg_stat_statements")
		}
		r.QueryID = &id
	}
	for _, list := range q["pid"] {
		for text := range strings.SplitSeq(list, ",") {
			pid, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
			if err != nil || pid <= 0 {
				return r, errors.New("pid must be a process id, or several with commas between them")
			}
			r.PIDs = append(r.PIDs, int(pid))
		}
	}
	slices.Sort(r.PIDs)
	r.PIDs = slices.Compact(r.PIDs)
	if len(r.PIDs) > maxPIDs {
		return r, fmt.Errorf("pid must name at most %d processes", maxPIDs)
	}
	return r, nil
}

// queryID reads a query id as a signed number, the form of SQL, or as an unsigned number.
func queryID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return id, nil
	}
	unsigned, err := strconv.ParseUint(text, 10, 64)
	return int64(unsigned), err
}

// key returns a text that is the same for requests with the same parameters.
func (r ProfileRequest) key() string {
	query := "all"
	if r.QueryID != nil {
		query = strconv.FormatInt(*r.QueryID, 10)
	}
	return fmt.Sprintf("%d %s %s %v", r.Duration, r.Mode, query, r.PIDs)
}

// busyError means that a profile for another request runs. The field after is the time until its end.
type busyError struct{ after time.Duration }

func (e busyError) Error() string { return "another profile is running" }

// Collect makes a profile. It must return soon after its context ends. The error wraps ErrUnavailable if profiles are
// impossible on this host or in the present state of the server, and ErrNoProcess if the server has none of the processes of the
// request.
type Collect func(ctx context.Context, r ProfileRequest) (*profile.Profile, error)

// flights runs one profile at a time. All clients with an equal request get the same profile.
type flights struct {
	collect Collect
	render  Render

	mu      sync.Mutex
	current *flight
}

// flight is a running profile.
type flight struct {
	key     string
	ends    time.Time
	waiting int // number of clients that wait for the profile
	cancel  context.CancelFunc
	done    chan struct{}
	err     error

	encoding sync.Mutex
	profile  *profile.Profile
}

// encode returns the profile in a format: pprof's compressed protocol buffer, or a format of render.
func (fl *flight) encode(render Render, format string) (data []byte, err error) {
	fl.encoding.Lock()
	defer fl.encoding.Unlock()
	defer recovered(&err)
	var out bytes.Buffer
	if format == formatPprof {
		err = fl.profile.Write(&out)
	} else {
		err = render(&out, fl.profile, format)
	}
	if err != nil {
		return nil, fmt.Errorf("encode the profile: %w", err)
	}
	return out.Bytes(), nil
}

// recovered sets *err if its caller panics. It must be deferred.
func recovered(err *error) {
	if failure := recover(); failure != nil {
		*err = fmt.Errorf("making a profile failed: %v", failure)
	}
}

// Render writes a profile in another format than pprof's.
type Render func(w io.Writer, p *profile.Profile, format string) error

// formatPprof is the format of "go tool pprof" and of scrapers.
const formatPprof = "pprof"

// contentTypes are the values of the header Content-Type, by format.
var contentTypes = map[string]string{
	formatPprof: "application/octet-stream", "html": "text/html; charset=utf-8", "text": "text/plain; charset=utf-8",
	"folded": "text/plain; charset=utf-8", "speedscope": "application/json", "json": "application/json",
}

// get returns a profile in a format. If ctx ends and no other client waits for the same profile, get stops the making
// of the profile.
func (f *flights) get(ctx context.Context, r ProfileRequest, format string) ([]byte, error) {
	fl, err := f.join(ctx, r)
	if err != nil {
		return nil, err
	}
	select {
	case <-fl.done:
		if fl.err != nil {
			return nil, fl.err
		}
		return fl.encode(f.render, format)
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		if fl.waiting--; fl.waiting == 0 {
			fl.key = "" // later equal requests must not join this profile
			fl.cancel()
		}
		return nil, ctx.Err()
	}
}

// join returns the running profile if it was started by an equal request. If no profile runs, it starts one for r. If a
// profile for another request runs, it returns a busyError.
func (f *flights) join(ctx context.Context, r ProfileRequest) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil {
		if f.current.key != r.key() {
			return nil, busyError{after: max(time.Second, time.Until(f.current.ends))}
		}
		f.current.waiting++
		return f.current, nil
	}
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Duration+collectGrace)
	fl := &flight{
		key: r.key(), ends: time.Now().Add(r.Duration), waiting: 1, cancel: cancel, done: make(chan struct{}),
	}
	f.current = fl
	go func() {
		defer cancel()
		fl.profile, fl.err = f.make(running, r)
		f.mu.Lock()
		f.current = nil
		f.mu.Unlock()
		close(fl.done)
	}()
	return fl, nil
}

// make collects a profile.
func (f *flights) make(ctx context.Context, r ProfileRequest) (p *profile.Profile, err error) {
	defer recovered(&err)
	return f.collect(ctx, r)
}

// stop ends the running profile.
func (f *flights) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil {
		f.current.cancel()
	}
}
