// Package view makes the pages of the incident screen. Its functions draw data and the user's choices (State) into a grid of
// cells. They read no clock, no process and no terminal, so a test can draw every page from fixed data.
package view

import (
	"time"

	"pg_stat_backtrace/worker/screen/source"
)

// Page is a page of the screen.
type Page int

// The pages.
const (
	PageLoad Page = iota
	PageWho
	PageBlocking
	PageSession
	PageFlame
	numPages
)

// Names returns the names of the pages in the order of their keys.
func Names() []string { return []string{"load", "who", "blocking", "session", "flame"} }

// windows returns the lengths of time that a chart can show, in ascending order.
func windows() []time.Duration {
	const day = 24 * time.Hour
	return []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, day, 7 * day}
}

// Panels of the page Session.
const (
	panelStack = iota
	panelPlan
	panelMemory
	numPanels
)

// State has the user's choices.
type State struct {
	Page   Page
	By     source.By
	Filter source.Filter
	// PID is the process of the page Session; 0: none has been chosen.
	PID   int
	Panel int
	// Side selects the stacks of the page Flame.
	Side source.Side
	// Scroll is the index of the first line that the chosen panel shows.
	Scroll int
	// Held is set while newer data must not replace the captured stack, plan and memory on the page Session.
	Held bool
	// Paused is set while newer data must not replace any data on the screen.
	Paused bool
	Help   bool
	Search string
	// Mouse is set while the terminal reports clicks.
	Mouse bool
	// Span is an earlier time to show; the zero value: the time until now. Moment is the time of the sessions, blocked processes
	// and findings that are shown; the zero time: the end of Span.
	Span   source.Span
	Moment time.Time
	// Compare is the begin of another span of the same length, with which the page `Who` compares; the zero time: none.
	Compare time.Time
	// When reads a time that the user has typed. A time without a zone is in the zone of now. The screen sets it; nil: the user
	// cannot type times.
	When func(text string, now time.Time) (time.Time, error)
	// Message stands in the last line until the next key.
	Message string
	// DataDir is the server's data directory, for the commands that the screen shows and runs.
	DataDir string
	// Connect is the address of a worker from which the data comes; empty: the data comes from this host. TokenFile is the
	// file with the token.
	Connect, TokenFile string

	// Result is the command that the user has started last, until the user closes it; nil: none.
	Result *Result

	// Listed is set if the server was opened from the list of servers: the end of the screen then returns to the list.
	Listed bool
	// Program is the first word of the commands that the screen shows; empty: pg_stat_backtrace.
	Program string

	// typing is the purpose of the text that the user types now, and typed is the text so far.
	typing typing
	typed  string
	window int // index in windows
	// panelWidth is the width of the chosen panel of the page Session on the screen.
	panelWidth int
	cursor     [numPages]cursor
	from       Page // the page from which the page Session was opened
	// captures is the number of captures that the user has requested since the start of the screen.
	captures int
	// measure is the last key of a measurement: p, w or i; see Measurement.
	measure string
	// warned is the process about which the screen has shown the warning of the function endless; 0: none.
	warned int
}

// typing is the purpose of a text that the user types.
type typing int

const (
	typingNothing typing = iota
	typingSearch
	typingTime
	typingCompare
)

// cursor is the selected row of a page. The row is found by its key, so that it stays selected if the order of the rows changes.
// If no row has the key, index is used.
type cursor struct {
	key   string
	index int
}

// NewState returns the state at the start of a screen: page Load, live, the last 5 minutes.
func NewState(dataDir string) *State {
	return &State{By: source.ByQuery, Side: source.Both, DataDir: dataDir, window: 1}
}

// Window returns the length of the span of charts and shares.
func (s *State) Window() time.Duration {
	if !s.Live() {
		return s.Span.To.Sub(s.Span.From)
	}
	return windows()[s.window]
}

// Data has the answers of the source for a page. Members that the page does not show are nil. Errors has the reason for
// each member that could not be read, by the member's name in lower case.
type Data struct {
	// Time is when the data was requested.
	Time     time.Time        `json:"time"`
	Info     *source.Info     `json:"info"`
	Load     *source.Load     `json:"load,omitempty"`
	Findings *source.Findings `json:"findings,omitempty"`
	Sessions *source.Sessions `json:"sessions,omitempty"`
	Who      *source.Who      `json:"who,omitempty"`
	// Comparison is present in place of `Who` if two spans are compared.
	Comparison *source.Comparison `json:"comparison,omitempty"`
	Blocking   *source.Blocking   `json:"blocking,omitempty"`
	Session    *source.Session    `json:"session,omitempty"`
	Stack      *source.Stack      `json:"stack,omitempty"`
	Plan       *source.Plan       `json:"plan,omitempty"`
	Memory     *source.Memory     `json:"memory,omitempty"`
	Flame      *source.Flame      `json:"flame,omitempty"`
	Errors     map[string]string  `json:"errors,omitempty"`

	// PID is the process of Session, Stack, Plan and Memory.
	PID int `json:"-"`
	// Filter is the filter of the request. Load, Sessions, `Who` and Flame have only data that passes it.
	Filter source.Filter `json:"filter,omitempty"`
	page   Page
	// captures is State.captures at the time of the request.
	captures int
}

// SetWindow chooses the shortest span of at least d for charts and shares, or the longest span.
func (s *State) SetWindow(d time.Duration) {
	s.window = len(windows()) - 1
	for i, w := range windows() {
		if d <= w {
			s.window = i
			return
		}
	}
}
