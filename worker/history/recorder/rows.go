package recorder

import (
	"math"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/locks"
)

// Bounds of a row.
const (
	maxBlockers = 32
	maxText     = 16 << 10
)

// idle reports whether a process has nothing to do. A session that is idle in a transaction is not idle here, since it can block
// others.
func idle(s *moment.Session) bool {
	switch {
	case s.Wait != nil && s.Wait.Type == "Activity":
		return true
	case s.State == "disabled": // track_activities is off, so only the wait event shows whether the session is idle
		return s.Wait != nil && s.Wait.Event == "ClientRead"
	}
	return s.State == "idle"
}

// rows returns a row for each session that is not idle or that blocks another session. It also returns the number of sessions that
// wait for a heavyweight lock whose holders are not known, and the number of sessions whose rows lack holders.
func (r *Recorder) rows(m *moment.Moment, waits map[int]*locks.Wait) (rows []store.Row, incomplete, shortened int) {
	blocks := map[int]bool{}
	for _, w := range waits {
		for i := range w.Blockers {
			blocks[w.Blockers[i].PID] = true
		}
	}
	begun := map[int32]int64{} // of the transactions of sessions that block others
	for i := range m.Sessions {
		if s := &m.Sessions[i]; blocks[s.ServerPID] {
			begun[int32(s.ServerPID)] = micro(s.XactStart)
		}
	}
	texts := make(map[string]string, len(r.texts))
	for i := range m.Sessions {
		s := &m.Sessions[i]
		if idle(s) && !blocks[s.ServerPID] {
			continue
		}
		row := rowOf(s)
		row.Query = r.text(s, texts)
		if w := waits[s.ServerPID]; w != nil && s.Wait != nil && (w.Kind == locks.Lock) == (s.Wait.Type == "Lock") {
			cut := 0
			if row.BlockedBy, cut = blockers(w, begun); cut > 0 {
				shortened++
			}
			if !w.Since.IsZero() {
				row.WaitStart = w.Since.UnixMicro()
			}
			if w.Kind == locks.Lock && (w.Reason != "" || len(w.Blockers) == 0) {
				incomplete++
			}
		}
		rows = append(rows, row)
	}
	r.texts = texts
	return rows, incomplete, shortened
}

// rowOf returns a row with the columns for which only the session is needed.
func rowOf(s *moment.Session) store.Row {
	row := store.Row{
		PID: int32(s.ServerPID), Start: micro(s.Started), Type: s.Type, DatabaseID: s.DatabaseOID, Database: s.Database,
		UserID: s.UserOID, User: s.User, App: s.Application, Client: s.Client, State: s.State, XactStart: micro(s.XactStart),
		QueryStart: micro(s.QueryStart), StateStart: micro(s.StateStart), QueryID: s.QueryID, Phrase: s.Phrase,
		Leader: int32(s.Leader),
	}
	if s.Wait != nil {
		row.WaitType, row.WaitEvent, row.WaitStart = s.Wait.Type, s.Wait.Event, micro(s.Wait.Since)
	}
	if strings.HasPrefix(s.State, "idle") && row.WaitEvent == "ClientRead" { // the recorder takes no stack of such sessions
		idle := moment.ClientIdle()
		row.Phrase, row.PhraseKey = idle.Text, idle.Key
	}
	return row
}

func micro(t *time.Time) int64 {
	if t == nil || t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// blockers returns the blockers of a wait, at most maxBlockers, and the number of holders of the lock that are left out. Holders come
// before processes that wait for the lock too. begun has the starts of the
// sessions' transactions.
func blockers(w *locks.Wait, begun map[int32]int64) (list []store.Blocker, cut int) {
	lock, mode, object := string(w.Kind), "", ""
	if w.Tag != nil {
		lock, mode, object = w.Tag.Type, w.Mode.String(), w.Tag.String()
	}
	list = make([]store.Blocker, 0, len(w.Blockers))
	for _, soft := range []bool{false, true} {
		for i := range w.Blockers {
			if b := &w.Blockers[i]; b.Hard != soft {
				list = append(list, store.Blocker{PID: int32(b.PID), Lock: lock, Mode: mode, Object: object, Soft: soft})
			}
		}
		if n := len(list); !soft && n > maxBlockers {
			return oldest(list, begun), n - maxBlockers
		}
	}
	return list[:min(len(list), maxBlockers)], 0
}

// oldest returns the maxBlockers holders with the oldest transactions: the rules search among them for the session that the others
// wait for. A prepared transaction counts as the oldest, and a session without a transaction as the youngest.
func oldest(holders []store.Blocker, begun map[int32]int64) (list []store.Blocker) {
	at := make([]int64, len(holders))
	for i := range holders {
		start, known := begun[holders[i].PID]
		if at[i] = start; known && start == 0 {
			at[i] = math.MaxInt64
		}
	}
	sorted := slices.Clone(at)
	slices.Sort(sorted)
	last := sorted[maxBlockers-1]
	equal := maxBlockers - slices.Index(sorted, last) // number of holders with this start that are in the result
	for i := range holders {
		if at[i] == last {
			equal--
		}
		if at[i] < last || at[i] == last && equal >= 0 {
			list = append(list, holders[i])
		}
	}
	return list
}

// text returns the text of the session's statement in the form of Options.Texts; empty: not kept. It adds normalized texts to
// texts.
func (r *Recorder) text(s *moment.Session, texts map[string]string) string {
	switch {
	case s.Query == "" || r.o.Texts == TextsOff:
		return ""
	case r.redacts(s.UserOID, s.User):
		return ""
	case r.o.Texts == TextsAll:
		return shortened(s.Query)
	case s.Type == "autovacuum worker": // the server itself writes this text, which has no data of users
		return shortened(s.Query)
	}
	text, ok := texts[s.Query]
	if !ok {
		if text, ok = r.texts[s.Query]; !ok {
			text = store.Normalized(s.Query)
		}
		texts[s.Query] = text
	}
	return text
}

func shortened(text string) string {
	if len(text) > maxText {
		n := maxText
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// unread reports whether some processes could not be read.
func unread(missing []string) bool {
	return slices.ContainsFunc(missing, func(m string) bool {
		return strings.HasPrefix(m, "process") || strings.HasPrefix(m, "memory of processes")
	})
}

// ended returns a row for each session that had a row in the last sweep and has none in this sweep, because it has ended or is
// idle. present has the rows of this sweep. now has all sessions of this sweep, also idle ones. If some processes could not be
// read, a session that is not in now may still exist, so ended returns no row for it.
func (r *Recorder) ended(present []store.Row, now []moment.Session, missing []string) []store.Row {
	partial := unread(missing)
	current := make(map[identity]*moment.Session, len(now))
	for i := range now {
		current[identity{int32(now[i].ServerPID), micro(now[i].Started)}] = &now[i]
	}
	still := make(map[identity]bool, len(present))
	for i := range present {
		still[identity{present[i].PID, present[i].Start}] = true
	}
	var rows []store.Row
	for id, row := range r.before {
		s := current[id]
		if still[id] || s == nil && partial {
			continue
		}
		row.Ended, row.State = true, ""
		row.WaitType, row.WaitEvent, row.WaitStart, row.BlockedBy = "", "", 0, nil
		row.Stack, row.Method, row.Phrase, row.PhraseKey, row.Plan, row.Function = 0, "", "", "", "", ""
		if r.redacts(row.UserID, row.User) { // the role may have got a redacted name after the row
			row.Query = ""
		}
		if s != nil {
			row.State, row.StateStart = s.State, micro(s.StateStart)
		}
		rows = append(rows, row)
	}
	sort.Slice(rows, func(i, j int) bool {
		a, b := rows[i], rows[j]
		return int(a.PID)-int(b.PID) < 0
	})
	return rows
}
