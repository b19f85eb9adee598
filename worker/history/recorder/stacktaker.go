package recorder

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// Bounds of a stack.
const (
	maxFrames = 128
	maxName   = 512
)

// Procedural is the prefix of a frame for a function of a procedural language, such as "pl:total(integer) line 3".
const Procedural = "pl:"

// Generated is the prefix of a frame for a named function in code compiled at run time. The name can be the name of a user's function.
const Generated = "jit:"

// Stack is the stack of a process at one moment.
type Stack struct {
	// ID is a hash of the frames: their names, build-ids and offsets. It is never 0.
	ID int64 `json:"id,string"`
	// Frames are the functions, the innermost first. A function of a procedural language comes before the frame that runs it,
	// and begins with "pl:". A named function in code that was compiled at run time begins with "jit:".
	Frames []string `json:"frames"`
	// Cut is the reason why the stack ends before its outermost frame; empty: the stack is complete.
	Cut string `json:"cut,omitempty"`
	// Method is the method by which the stack was taken: blocked or running.
	Method string `json:"method"`
	// Phrase describes in words what the process did, and PhraseKey is the phrase's name. Both may be empty.
	Phrase    string `json:"phrase,omitempty"`
	PhraseKey string `json:"phrase_key,omitempty"`
	// Advice is the advice for this phrase, and Page the page of the manual about it. Both may be empty.
	Advice string `json:"advice,omitempty"`
	Page   string `json:"page,omitempty"`
	// Function is the innermost function of a procedural language, with the line; empty: none is on the stack.
	Function string `json:"function,omitempty"`
	// Unnamed means that symbols of some frames were still being read. A later call returns the same stack with more names, and
	// perhaps with a phrase.
	Unnamed bool `json:"-"`
}

// TakeStack returns the stack of a process of a server, without stopping the process. The call takes at most about limit.
func TakeStack(ctx context.Context, c *capture.Capturer, server cluster.Cluster, pid int, limit time.Duration) (*Stack, error) {
	target, err := server.Contains(pid)
	if err != nil {
		return nil, err
	}
	defer target.Held.Release()
	t, err := c.Capture(ctx, target, capture.Options{NonStop: true, Deadline: limit, MaxFrames: maxFrames})
	if err != nil {
		return nil, err
	}
	return StackOf(t), nil
}

// StackOf translates the first thread of a trace.
func StackOf(t *backtrace.Trace) *Stack {
	s := &Stack{Method: t.Engine, Frames: []string{}}
	phrase := render.Phrase(t)
	s.Phrase, s.PhraseKey, s.Advice, s.Page = phrase.Text, phrase.Key, phrase.Advice, phrase.Page
	hash := fnv.New64a()
	if len(t.Threads) > 0 {
		th := &t.Threads[0]
		if !th.Whole {
			s.Cut = th.Stop
		}
		for i := range th.Frames {
			f := &th.Frames[i]
			for j := range f.Levels {
				if l := &f.Levels[j]; l.Function != "" {
					name := short(fmt.Sprintf("%s line %d", l.Function, l.Line))
					if l.Line == 0 {
						name = short(l.Function)
					}
					if s.Function == "" {
						s.Function = name
					}
					s.Frames = append(s.Frames, Procedural+name)
				}
			}
			s.Unnamed = s.Unnamed || f.Note == symbolize.SymbolsUnread
			label := short(f.Label())
			if f.Function != "" && f.BuildID == "" && f.ModuleOffset == 0 { // not in an image, as in Trace.WithoutNames
				label = Generated + label
			}
			s.Frames = append(s.Frames, label)
			_, _ = fmt.Fprintf(hash, "%s\x00%x\x00", f.BuildID, f.ModuleOffset)
		}
	}
	for _, name := range s.Frames { // the names are part of the hash: a stack with more names is another stack
		_, _ = hash.Write(append([]byte(name), 0))
	}
	if s.ID = int64(hash.Sum64()); s.ID == 0 {
		s.ID = 1
	}
	return s
}

// short shortens a name to maxName bytes, since users can choose long names.
func short(name string) string {
	name = strings.ToValidUTF8(name, "?")
	if len(name) <= maxName {
		return name
	}
	end := maxName
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end] + "..."
}
