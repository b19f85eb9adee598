package web

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"pg_stat_backtrace/worker/limits"
)

// The paths of the actions. An action starts only by POST with an operator token.
const (
	actionCapture  = "/screen/capture"
	actionIncident = "/screen/incident"
	actionProfile  = "/screen/profile"
	actionWaits    = "/screen/waits"
)

// Limits of an action (see Actions).
const (
	maxAction  = 4 << 10          // size of the request's body, in bytes
	maxNote    = 200              // length of the note, in characters
	actionTime = 30 * time.Second // time limit of the action
	// ActionMeasures is the duration of a profile and of a recording of waits.
	ActionMeasures = 10 * time.Second
)

// Actions are the functions that an operator starts from the incident screen. Each returns the answer as JSON. If the error is
// an *ActionError, it sets the HTTP status of the answer. For another error, the status is 500.
type Actions struct {
	// Capture reads one process of the server.
	Capture func(ctx context.Context, pid int) ([]byte, error)
	// Incident makes an incident with a note and keeps it.
	Incident func(ctx context.Context, note string) ([]byte, error)
	// Waits records the waits of one process for the time ActionMeasures, and returns them as text. nil: there is no such
	// action. A profile of one process needs Config.Collect and Config.Render.
	Waits func(ctx context.Context, pid int) (text string, err error)
}

// measured is the answer to an action that takes a profile of a process or records its waits.
type measured struct {
	PID  int       `json:"pid"`
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// ActionError is a refusal with an HTTP status.
type ActionError struct {
	Status int
	Text   string
}

// Error returns the text.
func (e *ActionError) Error() string { return e.Text }

// actionRecord describes an action for the log.
type actionRecord struct {
	token string // the first digits of the SHA-256 sum of the token; empty: the request had no operator token
	pid   int    // 0 for an incident
	note  string // only for an incident
}

// actions limits the actions: the lines about them in the log, how often each token starts them, and how many run at a time.
type actions struct {
	lines   *limits.Lines
	allowed map[string]*limits.Limiter // by path
	running map[string]chan struct{}
}

func newActions() *actions {
	measures := limits.Rate{PerSecond: limits.ActionMeasures, Burst: limits.ActionMeasureBurst}
	return &actions{
		lines: limits.NewLines(),
		allowed: map[string]*limits.Limiter{
			actionCapture:  limits.NewLimiter(limits.Rate{PerSecond: limits.ActionCaptures, Burst: limits.ActionCaptureBurst}),
			actionIncident: limits.NewLimiter(limits.Rate{PerSecond: limits.ActionIncidents, Burst: limits.ActionIncidentBurst}),
			actionProfile:  limits.NewLimiter(measures),
			actionWaits:    limits.NewLimiter(measures),
		},
		running: map[string]chan struct{}{
			actionCapture: make(chan struct{}, 2), actionIncident: make(chan struct{}, 1), actionProfile: make(chan struct{}, 1),
			actionWaits: make(chan struct{}, 1),
		},
	}
}

// isAction reports whether a path starts an action of this worker or of another one.
func (s *Server) isAction(path string) bool {
	if s.cfg.Screen == nil || s.cfg.Screen.Actions == nil {
		return false
	}
	_, path = s.actionOf(path)
	return s.actions.allowed[path] != nil
}

// actionOf splits a path into the path of the action and the port of the worker that runs it; 0: this worker.
func (s *Server) actionOf(path string) (port int, action string) {
	if port, name, ok := s.others.of(path); ok {
		return port, screenFiles + name
	}
	return 0, path
}

// act runs an action, or refuses it before it reads the body.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	record := actionRecord{}
	start := time.Now()
	answer, refused := s.action(w, r, &record)
	s.logAction(r, &record, refused, time.Since(start))
	h := w.Header()
	if refused == nil {
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
		return
	}
	h.Set("Connection", "close") // because the rest of the body is not read
	switch refused.status {
	case http.StatusMethodNotAllowed:
		h.Set("Allow", http.MethodPost)
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="pg_stat_backtrace"`)
	case http.StatusTooManyRequests:
		h.Set("Retry-After", "10")
	}
	failf(w, refused.status, "%s", refused.text)
}

// logAction logs an action or its refusal. It limits the rate of lines about refusals (see limits.Lines), because any client
// can cause them.
func (s *Server) logAction(r *http.Request, record *actionRecord, refused *actionRefusal, took time.Duration) {
	line, status := s.cfg.Log.Info(), http.StatusOK //nolint:zerologlint // sent below
	if refused != nil {
		line, status = s.cfg.Log.Warn().Str("failure", refused.text), refused.status //nolint:zerologlint // sent below
	}
	if refused != nil && !refused.ran {
		leftOut, ok := s.actions.lines.Take(0)
		if !ok {
			return
		}
		if leftOut > 0 {
			line.Int("left_out", leftOut)
		}
	}
	if record.pid != 0 {
		line.Int("pid", record.pid)
	}
	if record.note != "" {
		line.Str("note", record.note)
	}
	if record.token != "" {
		line.Str("token_sha256", record.token)
	}
	line.Str("action", strings.TrimPrefix(r.URL.Path, screenFiles)).Str("from", r.RemoteAddr).Int("status", status).
		Dur("took_ms", took).Msg("action of the screen")
}

// actionRefusal is a refusal or a failure of an action. ran is set if the action has begun before it failed.
type actionRefusal struct {
	refusal

	ran bool
}

func refuseAction(status int, format string, args ...any) *actionRefusal {
	return &actionRefusal{refusal: refusal{status, fmt.Sprintf(format, args...)}}
}

// action checks a request, in this order: method, web site, token, body, limits. Then it runs the action.
func (s *Server) action(w http.ResponseWriter, r *http.Request, record *actionRecord) ([]byte, *actionRefusal) {
	if r.Method != http.MethodPost {
		return nil, refuseAction(http.StatusMethodNotAllowed, "an action needs POST")
	}
	if f := s.refuse(r); f != nil {
		return nil, &actionRefusal{refusal: *f}
	}
	if foreignAction(r) {
		return nil, refuseAction(http.StatusForbidden, "only the page of this worker may start an action")
	}
	token, ok := s.operatorToken(r)
	if !ok {
		return nil, refuseAction(http.StatusForbidden, "an action needs an operator token, as Authorization: Bearer")
	}
	record.token = hex.EncodeToString(token[:4])
	input, f := s.actionInput(w, r)
	if f != nil {
		return nil, f
	}
	record.pid, record.note = input.PID, input.Note
	if n := connOf(r.Context()); n != nil {
		n.work()
		defer n.rest()
	}
	port, path := s.actionOf(r.URL.Path)
	if port != 0 {
		return s.forwardAction(r, port, strings.TrimPrefix(path, screenFiles), input)
	}
	if !take(r.Context(), s.actions.running[path], 0) {
		return nil, refuseAction(http.StatusTooManyRequests, "the same action is running; try again when it has finished")
	}
	defer func() { <-s.actions.running[path] }()
	role := binary.BigEndian.Uint32(token[:])
	if s.actions.allowed[path].Take(role) != nil {
		return nil, refuseAction(http.StatusTooManyRequests, "too many actions with this token; wait, then try again")
	}
	return s.runAction(r, input)
}

// runAction runs an action that was permitted.
func (s *Server) runAction(r *http.Request, input actionInput) (answer []byte, f *actionRefusal) {
	ctx, cancel := context.WithTimeout(r.Context(), actionTime)
	defer cancel()
	err := func() (err error) {
		defer recovered(&err)
		switch r.URL.Path {
		case actionCapture:
			answer, err = s.cfg.Screen.Actions.Capture(ctx, input.PID)
		case actionIncident:
			answer, err = s.cfg.Screen.Actions.Incident(ctx, input.Note)
		default:
			answer, err = s.measure(ctx, r.URL.Path, input.PID)
		}
		return err
	}()
	if err == nil {
		return answer, nil
	}
	f = refuseAction(http.StatusInternalServerError, "%v", err)
	if own := (*ActionError)(nil); errors.As(err, &own) {
		f.status = own.Status
	}
	f.ran = true
	return nil, f
}

// measure takes a profile of a process, or records its waits.
func (s *Server) measure(ctx context.Context, path string, pid int) ([]byte, error) {
	answer := measured{PID: pid, Time: time.Now()}
	var err error
	switch {
	case path == actionWaits && s.cfg.Screen.Actions.Waits != nil:
		answer.Text, err = s.cfg.Screen.Actions.Waits(ctx, pid)
	case path == actionProfile && s.cfg.Collect != nil && s.cfg.Render != nil:
		var text []byte
		text, err = s.flights.get(ctx, ProfileRequest{Duration: ActionMeasures, Mode: ModeWall, PIDs: []int{pid}}, "text")
		answer.Text = string(text)
	default:
		err = &ActionError{Status: http.StatusNotImplemented, Text: "this worker does not measure processes"}
	}
	var busy busyError
	switch {
	case errors.As(err, &busy):
		err = &ActionError{Status: http.StatusTooManyRequests, Text: "another profile is running; try again when it has finished"}
	case errors.Is(err, ErrNoProcess):
		err = &ActionError{Status: http.StatusNotFound, Text: err.Error()}
	case errors.Is(err, ErrUnavailable):
		err = &ActionError{Status: http.StatusServiceUnavailable, Text: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

// actionInput is the body of a request.
type actionInput struct {
	PID  int    `json:"pid,omitempty"`
	Note string `json:"note,omitempty"`
}

// actionInput reads and checks the body of a request. The connection's read deadline limits the time for that.
func (s *Server) actionInput(w http.ResponseWriter, r *http.Request) (in actionInput, f *actionRefusal) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || kind != "application/json" || len(r.Header.Values("Content-Type")) != 1 ||
		charset != "" && !strings.EqualFold(charset, "utf-8") || r.Header.Get("Content-Encoding") != "" {
		return in, refuseAction(http.StatusUnsupportedMediaType, "the body must be JSON, with Content-Type: application/json")
	}
	if r.URL.RawQuery != "" {
		return in, refuseAction(http.StatusBadRequest, "an action has no parameters in its URL")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAction))
	switch tooLarge := (*http.MaxBytesError)(nil); {
	case errors.As(err, &tooLarge):
		return in, refuseAction(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxAction)
	case err != nil:
		return in, refuseAction(http.StatusBadRequest, "the body did not arrive")
	}
	control := http.NewResponseController(w)
	// The read deadline must not pass while the action runs; see protected.
	if err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(2*actionTime))); err != nil {
		return in, refuseAction(http.StatusInternalServerError, "the connection has no deadlines")
	}
	_, path := s.actionOf(r.URL.Path)
	if in, err = decodeAction(path, data); err != nil {
		return in, refuseAction(http.StatusBadRequest, "%v", err)
	}
	return in, nil
}

// decodeAction decodes the body and checks that it has only the members of this action.
func decodeAction(path string, data []byte) (in actionInput, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	object := len(bytes.TrimLeft(data, " \t\r\n")) > 0 && bytes.TrimLeft(data, " \t\r\n")[0] == '{' // null decodes into every struct
	if err := d.Decode(&in); err != nil || !object || !utf8.Valid(data) {
		return in, errors.New(`the body must be an object, such as {"pid": 4711} or {"note": "slow"}`)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return in, errors.New("the body has more than one object")
	}
	strange := func(c rune) bool { return !unicode.IsPrint(c) }
	switch {
	case path != actionIncident && (in.PID < 1 || in.PID > 1<<31-1 || in.Note != ""):
		return in, errors.New("pid must be a positive number, and the action has no other member")
	case path == actionIncident && (in.PID != 0 || utf8.RuneCountInString(in.Note) > maxNote || strings.ContainsFunc(in.Note, strange)):
		return in, fmt.Errorf("note must have at most %d printable characters, and an incident has no other member", maxNote)
	}
	return in, nil
}

// foreignAction reports whether a browser sends the request for a page of another address. It is stricter than foreignSite:
// the host and port of the page must be the same as those of the request. If a proxy replaces the request's host, actions work
// only in browsers that send Sec-Fetch-Site.
func foreignAction(r *http.Request) bool {
	site := r.Header.Values("Sec-Fetch-Site")
	for _, value := range site {
		if value != "same-origin" {
			return true
		}
	}
	if len(site) > 0 {
		return false
	}
	for _, page := range r.Header.Values("Origin") {
		if _, host, ok := strings.Cut(page, "://"); !ok || !strings.EqualFold(host, r.Host) {
			return true
		}
	}
	return false
}
