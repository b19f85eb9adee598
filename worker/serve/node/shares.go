package node

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// Accounts (see account.go) share the workers fairly. While there are enough workers, each server has one. Otherwise, if a server
// waits for a worker, and another account has at least two workers more than the server's account, the newest worker of that
// account ends. So an account with many processes delays the servers of others only until one worker has ended.

// startDue starts the workers that are due, up to Max workers in all. The accounts with the fewest workers come first.
// Among the chosen clusters, the order of the data directories decides which worker starts first.
func (s *supervisor) startDue(ctx context.Context, now time.Time) {
	if !s.settle(now) {
		return
	}
	due := s.due(now)
	chosen, rest := s.choose(due)
	s.sortByName(chosen)
	for _, k := range chosen {
		c := s.clusters[k]
		s.budget(c.Account).starts.take(now, s.startRate())
		s.start(ctx, k, c)
	}
	s.makeRoom(rest)
	s.reportBeyond(len(rest), now)
}

// due returns the clusters whose worker may start now.
func (s *supervisor) due(now time.Time) (due []key) {
	type place struct {
		name  string
		owner int
	}
	ending := map[place]bool{}
	for _, c := range s.clusters {
		if c.phase == stopping && time.Since(c.since) < 2*s.Grace {
			ending[place{c.name, c.UID}] = true
		}
	}
	for k, c := range s.clusters {
		// The worker of an earlier process of the same directory and user may still be ending. Until its end, it uses the
		// slot, the port and the folders that the next worker needs.
		if c.phase == waiting && !now.Before(c.next) && !ending[place{c.name, c.UID}] &&
			s.budget(c.Account).starts.free(now, s.startRate()) {
			due = append(due, k)
		}
	}
	return due
}

// workers counts the clusters that are in one of these phases, by account and all together.
func (s *supervisor) workers(phases ...phase) (ofAccount map[int]int, all int) {
	ofAccount = map[int]int{}
	for _, c := range s.clusters {
		if slices.Contains(phases, c.phase) {
			ofAccount[c.Account]++
			all++
		}
	}
	return ofAccount, all
}

// choose divides the clusters in the list due: chosen has the clusters that get a worker now, and rest has the others.
func (s *supervisor) choose(due []key) (chosen, rest []key) {
	have, all := s.workers(running, stopping)
	s.sortByName(due)
	queues := map[int][]key{}
	for _, k := range due {
		account := s.clusters[k].Account
		queues[account] = append(queues[account], k)
	}
	for ; all < s.Max && len(queues) > 0; all++ {
		first := slices.MinFunc(slices.Collect(maps.Keys(queues)), func(a, b int) int {
			return cmp.Or(cmp.Compare(have[a], have[b]), cmp.Compare(a, b))
		})
		chosen = append(chosen, queues[first][0])
		have[first]++
		if queues[first] = queues[first][1:]; len(queues[first]) == 0 {
			delete(queues, first)
		}
	}
	for _, queue := range queues {
		rest = append(rest, queue...)
	}
	return chosen, rest
}

// makeRoom ends workers of accounts that have more than their share, so that the clusters of accounts with less than
// their share get workers. It ends the newest workers first.
func (s *supervisor) makeRoom(rest []key) {
	if len(rest) == 0 {
		return
	}
	have, _ := s.workers(running)
	ending := 0
	for _, c := range s.clusters {
		if c.phase == stopping && time.Since(c.since) < 2*s.Grace {
			ending++
		}
	}
	wanted := maps.Clone(have)
	for _, k := range rest {
		wanted[s.clusters[k].Account]++
	}
	share := shares(wanted, have, s.Max)
	missing := -ending // each worker that is ending already makes room for one
	for _, k := range rest {
		if account := s.clusters[k].Account; have[account] < share[account] {
			have[account]++
			missing++
		}
	}
	for ; missing > 0; missing-- {
		var newest *cluster
		for _, c := range s.clusters {
			if c.phase == running && have[c.Account] > share[c.Account] && (newest == nil || c.began.After(newest.began)) {
				newest = c
			}
		}
		if newest == nil {
			return
		}
		have[newest.Account]--
		newest.yields = true
		s.Log.Info().Str("cluster", newest.DataDir).Int("postmaster", newest.PID).Int("uid", newest.UID).
			Msg("ending this worker for a server of a user with fewer workers; raise --max-workers")
		s.stop(newest)
	}
}

// shares divides a number of workers as evenly as possible among accounts. The maps wanted and have are the numbers of
// workers that each account wants and has. An indivisible rest goes to accounts that have more workers already, so that
// no worker ends because of the rest.
func shares(wanted, have map[int]int, workers int) map[int]int {
	accounts := slices.SortedFunc(maps.Keys(wanted), func(a, b int) int {
		return cmp.Or(cmp.Compare(wanted[a], wanted[b]), cmp.Compare(have[a], have[b]), cmp.Compare(a, b))
	})
	share := map[int]int{}
	for i, account := range accounts {
		share[account] = min(wanted[account], max(workers, 0)/(len(accounts)-i))
		workers -= share[account]
	}
	return share
}

// beyondPause is the shortest time between two lines about servers without a worker, as any user can change their number often.
const beyondPause = 10 * time.Second

// reportBeyond logs the number of servers that have no worker because of Max, if this number has changed.
func (s *supervisor) reportBeyond(beyond int, now time.Time) {
	if beyond == s.beyond || now.Sub(s.beyondLogged) < beyondPause {
		return
	}
	s.beyond, s.beyondLogged = beyond, now
	s.Log.Warn().Int("max_workers", s.Max).Int("clusters_without_worker", beyond).
		Msg("there are more clusters than workers are allowed; raise --max-workers")
}
