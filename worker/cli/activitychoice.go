package cli

import (
	"slices"

	"pg_stat_backtrace/worker/moment"
)

// isChosen reports whether the user has chosen the process, or has not named any process.
func (f *activityFlags) isChosen(s *moment.Session) bool {
	return len(f.pids) == 0 || slices.Contains(f.pids, s.PID)
}

// selectProcesses removes the processes that the user has not chosen, and the trees without a chosen process. With --tree, all
// processes of the remaining trees stay. It returns the chosen process ids that have no session.
func (f *activityFlags) selectProcesses(m *moment.Moment) (missing []int) {
	if len(f.pids) == 0 {
		return nil
	}
	chosen := map[int]bool{} // by process id in the server's namespace
	for _, pid := range f.pids {
		i := slices.IndexFunc(m.Sessions, func(s moment.Session) bool { return s.PID == pid })
		if i < 0 {
			missing = append(missing, pid)
			continue
		}
		chosen[m.Sessions[i].ServerPID] = true
	}
	m.Blocking = slices.DeleteFunc(m.Blocking, func(n *moment.Node) bool { return !hasProcess(n, chosen) })
	shown := chosen
	if f.tree {
		shown = map[int]bool{}
		for _, root := range m.Blocking {
			eachNode(root, func(n *moment.Node) bool {
				shown[n.PID] = true
				for i := range n.Waits {
					for _, pid := range n.Waits[i].Candidates {
						shown[pid] = true
					}
				}
				return true
			})
		}
	}
	m.Sessions = slices.DeleteFunc(m.Sessions, func(s moment.Session) bool { return !shown[s.ServerPID] && !chosen[s.ServerPID] })
	return missing
}

// hasProcess reports whether one of the processes is in a tree.
func hasProcess(root *moment.Node, pids map[int]bool) bool {
	return !eachNode(root, func(n *moment.Node) bool {
		return !pids[n.PID] && !slices.ContainsFunc(n.Waits, func(w moment.LockWait) bool { return pids[w.PID] })
	})
}

// eachNode calls the callback visit for the nodes of a tree until visit returns false. It returns true if visit
// returned true for all nodes.
func eachNode(root *moment.Node, visit func(*moment.Node) bool) bool {
	todo := []*moment.Node{root}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = append(todo[:len(todo)-1], n.Blocked...)
		if !visit(n) {
			return false
		}
	}
	return true
}
