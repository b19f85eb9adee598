package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/spool"
)

// The verbs for incidents and recorded stacks; see sql/src/incidents.sql. The setting history has the id of the
// incident or of the stack.
var (
	_ = register(Verb{
		Name: "incidents", Processes: Any, gate: (*Service).reading,
		answer: func(s *Service, ctx context.Context, c call) spool.Answer {
			return s.answerRecorded(ctx, c, s.incidentRows)
		},
	})
	_ = register(Verb{
		Name: "incident", Processes: Any, gate: (*Service).reading,
		answer: func(s *Service, ctx context.Context, c call) spool.Answer {
			return s.answerRecorded(ctx, c, s.incidentText)
		},
	})
	_ = register(Verb{
		Name: "stack", Processes: Any, gate: (*Service).reading,
		answer: func(s *Service, ctx context.Context, c call) spool.Answer {
			return s.answerRecorded(ctx, c, s.recordedStack)
		},
	})
)

func (s *Service) incidentDir() (*incident.Dir, error) {
	id, err := s.recordedCluster()
	if err != nil {
		return nil, err
	}
	return &incident.Dir{Path: incident.DirOf(s.cfg.HistoryDir, id)}, nil
}

// incidentRows returns a first row with a notice or "", and then the incidents, the newest first: id, time in
// microseconds since 1970, rule, cause in words, summary and file.
func (s *Service) incidentRows(ctx context.Context, req spool.Request) ([][]string, error) {
	dir, err := s.incidentDir()
	if err != nil {
		return nil, err
	}
	list, err := dir.List()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", incident.ErrUnreadable, err)
	}
	rows, size, damaged, left := [][]string{nil}, 0, 0, 0
	for n, e := range slices.Backward(list) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(rows) > maxHistoryRows || size > limits.MaxRows {
			left = n + 1
			break
		}
		i, err := dir.ReadHead(e.ID)
		if err != nil {
			if !errors.Is(err, incident.ErrNotFound) { // ErrNotFound: removed meanwhile
				damaged++
			}
			continue
		}
		row := []string{
			i.ID, strconv.FormatInt(i.Time.UnixMicro(), 10), i.Reason.Rule, rules.CauseWords(i.Reason.Cause), i.Reason.Summary,
			filepath.Join(dir.Path, i.ID+".html"),
		}
		size += cellsSize(row, req.Encoding)
		rows = append(rows, row)
	}
	var parts []string
	if left > 0 {
		parts = append(parts, fmt.Sprintf("%d older incidents are left out: list them with pg_stat_backtrace incident list", left))
	}
	if damaged > 0 {
		parts = append(parts, units.Count(damaged, "file")+" of incidents cannot be read")
	}
	rows[0] = []string{strings.Join(parts, "; ")}
	return rows, nil
}

// incidentText returns a notice or "", and the JSON form of an incident.
func (s *Service) incidentText(_ context.Context, req spool.Request) ([][]string, error) {
	dir, err := s.incidentDir()
	if err != nil {
		return nil, err
	}
	i, err := dir.Read(req.Settings["history"])
	if err != nil {
		return nil, err
	}
	return incidentJSON(i, req.Encoding)
}

// incidentJSON returns the rows of incidentText. If the text is too large for an answer, it leaves out the older half of the spans in
// the incident's history, again and again, and adds a notice.
func incidentJSON(i *incident.Incident, encoding string) ([][]string, error) {
	left := 0
	for {
		text, err := json.Marshal(i)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", incident.ErrUnreadable, err)
		}
		text = portableJSON(text, encoding)
		n := (len(i.History.Spans) + 1) / 2
		if len(text) > limits.MaxRows && n > 0 {
			i.History.Spans, i.History.LeftOut, left = i.History.Spans[n:], i.History.LeftOut+n, left+n
			continue
		}
		notice := ""
		if left > 0 {
			notice = units.Plural(left, "%d older {span|spans} of the incident's history {is|are} left out: the incident's file has {it|them}")
		}
		return [][]string{{notice}, {string(text)}}, nil
	}
}

// portableJSON escapes the characters of a JSON text that the answer could not have in a database with this encoding. The
// escapes of other answers are not JSON.
func portableJSON(text []byte, encoding string) []byte {
	text = render.VisibleJSON(text)
	if encoding != encodingUTF8 {
		text = asciiJSON(text)
	}
	return text
}

// asciiJSON replaces the characters of a JSON text that are not ASCII by escapes.
func asciiJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}

// recordedStack returns a notice, and a second row with the frames of a recorded stack: a line for each, the innermost
// first. If the history does not have the stack, there is no second row.
func (s *Service) recordedStack(ctx context.Context, req spool.Request) ([][]string, error) {
	text := req.Settings["history"]
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, invalid("history", text, "Call pg_backtrace_stack.")
	}
	r, err := s.historyReader()
	if err != nil {
		return nil, err
	}
	k, err := r.FindStack(ctx, id)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return [][]string{{fmt.Sprintf("the history has no stack %d", id)}}, nil
	}
	var b strings.Builder
	for n, frame := range k.Frames {
		if n > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "#%-3d %s", n, render.VisibleLine(frame))
	}
	if k.Cut != "" {
		fmt.Fprintf(&b, "\n(%s)", render.VisibleLine(k.Cut))
	}
	return [][]string{{""}, {b.String()}}, nil
}
