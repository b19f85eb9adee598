package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/pg/cluster"
)

// RulesOff is the value of RecordConfig.Rules that switches all rules off.
const RulesOff = "off"

// startRules returns the rules with which a worker starts. If the file of rules cannot be used, it returns an error or, if
// RulesOptional is set, the built-in rules.
func (c *RecordConfig) startRules() (rules.Config, error) {
	if c.Rules == "" {
		return rules.Default(), nil
	}
	r, err := rules.Load(c.Rules)
	if err != nil && c.RulesOptional {
		return rules.Default(), nil
	}
	return r, err
}

// overBudget is the time of a line in the log, and the number of findings without a line since then.
type overBudget struct {
	at      time.Time
	omitted int
}

// watcher applies the rules to each look of the recorder (rules.Look, the sessions at one time), and makes incidents.
type watcher struct {
	worker *Worker
	engine *rules.Engine // only the recorder's goroutine uses it
	// next has rules that were read again from the file and that the next call of look must begin to use; nil: none.
	next atomic.Pointer[rules.Config]
	jobs chan incidentJob
	hook *rules.WebhookSender
	// alerts are the alerts that were sent and have not ended. Only the goroutine that writes incidents uses this map.
	alerts map[alertKey]rules.Alert
	// written are the incidents that have not ended. filing is locked while the files of an incident are written again.
	written map[alertKey]writtenIncident
	filing  sync.Mutex

	// overBudget has, by rule, the last line in the log about the budget of incidents.
	overBudget map[string]overBudget
	// profiling is set while a profile is being taken.
	profiling atomic.Bool
	profiles  sync.WaitGroup
	// late gets the files of the incident whose files were not written within incidentLimit, so that its alert was sent without
	// them; nil: there is no such incident.
	late chan incidentFiles
	// lateKey is the key of the incident of late, and lateEnd its end; the zero time: it has not ended.
	lateKey alertKey
	lateEnd time.Time
	// systemID is the server's system identifier; empty: it could not be read.
	systemID string
}

// incidentFiles is an incident, and the page with it.
type incidentFiles struct {
	key      alertKey
	incident *incident.Incident
	dir      incident.Dir
	page     string
	err      error
}

// incidentLimit is the longest time for which an alert waits for the files of its incident. It is also the time limit for
// collecting an incident, so an alert does not wait for a disk that does not answer.
const incidentLimit = 20 * time.Second

// incidentEnd is the longest time for which an ending worker waits for the files of an incident.
const incidentEnd = 3 * time.Second

// errNoAnswer means that the files of an incident were not written in time.
var errNoAnswer = errors.New("the disk does not answer: the alert is sent without the files of its incident")

// incidentJob is an incident to be written, or the end of an earlier incident.
type incidentJob struct {
	finding rules.Finding
	look    *rules.Look
	config  rules.Config
	// until, if not zero, is the time at which an earlier incident has ended.
	until time.Time
}

// alertKey identifies an alert.
type alertKey struct{ rule, cause string }

// writtenIncident is an incident, and the directory of its files.
type writtenIncident struct {
	id  string
	dir incident.Dir
}

// maxAlerts is the largest number of alerts in watcher.alerts. The ends of further alerts are not sent.
const maxAlerts = 1000

// maxIncidentJobs is the largest number of incidents and ends of alerts that wait for the goroutine that writes them. It is larger
// than the default budget of incidents, because one cause, such as a full disk, can begin many stalls at once.
const maxIncidentJobs = 100

// newWatcher returns a watcher; nil without an error: the rules are off.
func (w *Worker) newWatcher() (*watcher, error) {
	if w.cfg.Record.Rules == RulesOff {
		return nil, nil //nolint:nilnil // no watcher
	}
	c, err := w.cfg.Record.startRules()
	if err != nil {
		return nil, err
	}
	return &watcher{
		worker: w, engine: rules.New(c), jobs: make(chan incidentJob, maxIncidentJobs), alerts: map[alertKey]rules.Alert{},
		written: map[alertKey]writtenIncident{}, hook: rules.NewWebhookSender(w.log), overBudget: map[string]overBudget{},
	}, nil
}

// run writes incidents, sends alerts and reads the rules again at SIGHUP, until ctx ends.
func (v *watcher) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	sending, end := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { v.hook.Run(sending) })
	wg.Go(func() { v.reload(ctx) })
	wg.Go(func() { v.worker.runCommands(ctx) })
	defer v.waitProfiles()
	defer end() // after the last alert
	for {
		select {
		case <-ctx.Done():
			v.last()
			return
		case made := <-v.late: // nil, which never has a value, without a late incident
			v.tookLate(&made)
		case j := <-v.jobs:
			if !j.until.IsZero() {
				v.end(&j)
				continue
			}
			err := host.Catch("incident", func() error { return v.write(ctx, j) })
			if err != nil {
				v.worker.log.Error().Err(err).Str("rule", j.finding.Rule).Msg("incident was not written")
			}
		}
	}
}

// last sends the alerts and the ends that wait when the worker ends. It writes no files of incidents, since each may take incidentEnd.
func (v *watcher) last() {
	for {
		select {
		case j := <-v.jobs:
			if !j.until.IsZero() {
				v.end(&j)
				continue
			}
			v.worker.log.Error().Str("rule", j.finding.Rule).Str("summary", j.finding.Summary).
				Msg("incident was not written: the worker ends")
			v.post(&j, v.alertOf(&j, nil))
		default:
			return
		}
	}
}

// waitProfiles waits for the end of the profile of an incident, but at most incidentEnd, because the disk may not answer.
func (v *watcher) waitProfiles() {
	done := make(chan struct{})
	go func() {
		v.profiles.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(incidentEnd):
	}
}

// reload reads the file of rules again at each SIGHUP, and after each value of RecordConfig.Reload. If the file has an error, the
// old rules stay.
func (v *watcher) reload(ctx context.Context) {
	path, log := v.worker.cfg.Record.Rules, &v.worker.log
	if path == "" {
		return
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Ignore(syscall.SIGHUP) // as before signal.Notify
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		case <-v.worker.cfg.Record.Reload:
		}
		c, err := rules.Load(path)
		if err != nil {
			log.Error().Err(err).Msg("the old rules stay")
			continue
		}
		v.next.Store(&c)
		log.Info().Str("file", path).Msg("rules were read again")
		v.worker.reloadCommands(&c)
	}
}

// look applies the rules to l, and queues new incidents and ends of alerts. It does not block.
func (v *watcher) look(l *rules.Look) {
	if c := v.next.Swap(nil); c != nil {
		v.engine.Change(*c)
	}
	r := v.engine.Look(l)
	log := &v.worker.log
	if len(r.New) > 0 {
		copied := *l // a copy, because the recorder changes the rows later
		copied.Rows = slices.Clone(l.Rows)
		for _, f := range r.New {
			select {
			case v.jobs <- incidentJob{finding: f, look: &copied, config: v.engine.Config()}:
			default:
				log.Error().Str("rule", f.Rule).Str("summary", f.Summary).Msg("incident was not written: too many at the same time")
			}
		}
	}
	for _, f := range r.Ended {
		select {
		case v.jobs <- incidentJob{finding: f.Finding, config: v.engine.Config(), until: f.Until}:
		default:
			log.Warn().Str("rule", f.Rule).Msg("the end of an alert was not sent: too many incidents at the same time")
		}
	}
	for _, f := range r.OverBudget {
		last, ok := v.overBudget[f.Rule]
		if ok && l.Time.Sub(last.at) < time.Minute {
			last.omitted++
			v.overBudget[f.Rule] = last
		} else {
			v.overBudget[f.Rule] = overBudget{at: l.Time}
			log.Warn().Str("rule", f.Rule).Str("summary", f.Summary).Int("per_hour", v.engine.Config().Budget).
				Int("omitted", last.omitted).
				Msg("no incident yet: the budget is used up")
		}
	}
}

// write makes the files of an incident and queues the alert. The alert does not wait for a disk that does not answer.
func (v *watcher) write(ctx context.Context, j incidentJob) error {
	made := v.files(ctx, j)
	delete(v.written, alertKey{j.finding.Rule, j.finding.Cause}) // an earlier incident, whose end was not seen
	v.keep(&made)
	a := v.alertOf(&j, made.incident)
	if v.send(&j, a, made.page) && len(v.alerts) < maxAlerts {
		v.alerts[alertKey{j.finding.Rule, j.finding.Cause}] = a
	}
	return made.err
}

// keep notes an incident whose files were written, so that its end is written too.
func (v *watcher) keep(made *incidentFiles) {
	if made.err == nil && len(v.written) < maxAlerts {
		v.written[made.key] = writtenIncident{made.incident.ID, made.dir}
	}
}

// takeLate keeps the incident of v.late if its files are written now.
func (v *watcher) takeLate() {
	select {
	case made := <-v.late: // if v.late is nil, the case default applies
		v.tookLate(&made)
	default:
	}
}

// tookLate keeps the incident of v.late, whose files are written now. If it has ended, tookLate writes its end.
func (v *watcher) tookLate(made *incidentFiles) {
	v.late = nil
	switch ended := v.lateEnd; {
	case ended.IsZero():
		v.keep(made)
	case made.err == nil:
		w := writtenIncident{made.incident.ID, made.dir}
		v.profiles.Go(func() { v.writeEnd(w, ended) }) // another goroutine, because the disk may not answer
	}
}

// files makes the files of an incident in another goroutine, and waits until incidentLimit. If the time passes, or while the files
// of an earlier incident are not written yet, the result has errNoAnswer.
func (v *watcher) files(ctx context.Context, j incidentJob) incidentFiles {
	v.takeLate()
	if v.late != nil {
		return incidentFiles{err: errNoAnswer}
	}
	done := make(chan incidentFiles, 1)
	go func() {
		var made incidentFiles
		err := host.Catch("incident", func() error {
			made = v.makeFiles(ctx, j)
			return made.err
		})
		made.key, made.err = alertKey{j.finding.Rule, j.finding.Cause}, err
		done <- made
	}()
	limit := time.NewTimer(incidentLimit)
	defer limit.Stop()
	select {
	case made := <-done:
		return made
	case <-limit.C:
	case <-ctx.Done():
		select {
		case made := <-done:
			return made
		case <-time.After(incidentEnd):
		}
	}
	v.late, v.lateKey, v.lateEnd = done, alertKey{j.finding.Rule, j.finding.Cause}, time.Time{}
	return incidentFiles{err: errNoAnswer}
}

// makeFiles makes the files of an incident, and logs one line. A goroutine adds the profile later, because other incidents must not
// wait for the time that a profile takes.
func (v *watcher) makeFiles(ctx context.Context, j incidentJob) incidentFiles {
	w := v.worker
	c, err := w.current()
	if err != nil {
		c = w.server()
	}
	src := incident.Source{
		Server: c, StateDir: w.cfg.Record.Dir, Capturer: w.capturer, Proof: w.verbs.PlanProof, Program: w.cfg.Version, Identify: w.identifier(),
	}
	i := incident.Collect(ctx, src, j.finding, j.look)
	profile := w.capturer != nil && ctx.Err() == nil && v.profiling.CompareAndSwap(false, true)
	if !profile {
		i.Missing = append(i.Missing, "profile: one was taken for an earlier incident at the same time")
	}
	dir := incident.Dir{
		Path: incident.DirOf(w.cfg.Record.Dir, i.Server.SystemID), Keep: j.config.Keep, Size: j.config.Size, MinFree: w.cfg.Record.MinFree,
	}
	page, err := "", incident.ErrDirectory
	if i.Server.SystemID != "" {
		page, err = dir.Write(i)
	}
	w.log.WithLevel(zerolog.WarnLevel).Str("rule", j.finding.Rule).Str("summary", j.finding.Summary).Str("incident", i.ID).
		Str("file", page).Msg("incident")
	if profile {
		v.profiles.Go(func() {
			defer v.profiling.Store(false)
			if err == nil {
				v.addProfile(ctx, &src, &dir, i)
			}
		})
	}
	return incidentFiles{incident: i, dir: dir, page: page, err: err}
}

// addProfile takes a profile, and writes the incident again with this profile.
func (v *watcher) addProfile(ctx context.Context, src *incident.Source, dir *incident.Dir, i *incident.Incident) {
	err := host.Catch("profile of an incident", func() error {
		whole := *i
		whole.Profile = incident.TakeProfile(ctx, src, i.Reason.Processes, incident.ProfileTime)
		v.filing.Lock()
		defer v.filing.Unlock()
		if now, err := dir.Read(i.ID); err == nil {
			whole.Ended = now.Ended
		}
		return dir.Complete(&whole)
	})
	if err != nil {
		v.worker.log.Error().Err(err).Str("incident", i.ID).Msg("the profile of an incident was not written")
	}
}

// writeEnd writes the end of an incident to its files.
func (v *watcher) writeEnd(w writtenIncident, ended time.Time) {
	err := host.Catch("end of an incident", func() error {
		v.filing.Lock()
		defer v.filing.Unlock()
		return w.dir.End(w.id, ended)
	})
	if err != nil {
		v.worker.log.Error().Err(err).Str("incident", w.id).Msg("the end of an incident was not written")
	}
}

// end writes the end of an incident, and queues the message that an alert has ended, if the alert is in v.alerts.
func (v *watcher) end(j *incidentJob) {
	v.takeLate()
	key := alertKey{j.finding.Rule, j.finding.Cause}
	if v.late != nil && v.lateKey == key && v.lateEnd.IsZero() {
		v.lateEnd = j.until
	}
	if w, ok := v.written[key]; ok {
		delete(v.written, key)
		v.profiles.Go(func() { v.writeEnd(w, j.until) }) // another goroutine, because the disk may not answer
	}
	a, ok := v.alerts[key]
	if !ok {
		return
	}
	delete(v.alerts, key)
	a.Until = j.until
	v.send(j, a, "")
}

// send queues an alert for the webhook and the command. file is the path of the incident's page, for the command. send returns
// false if neither gets the alert.
func (v *watcher) send(j *incidentJob, a rules.Alert, file string) bool {
	posted, ran := v.post(j, a), v.worker.runCommand(j, a, file)
	return posted || ran
}

// post queues an alert for the webhook. It returns false if there is no webhook, or too many alerts wait.
func (v *watcher) post(j *incidentJob, a rules.Alert) bool {
	hook := j.config.Webhook
	if hook.URL == "" {
		return false
	}
	if !v.hook.Send(rules.WebhookTarget(hook), a) {
		v.worker.log.Warn().Str("rule", j.finding.Rule).Msg("alert was not sent: too many wait")
		return false
	}
	return true
}

// alertOf describes an incident without names and texts of the server's users. i is nil if the incident was not collected in time.
func (v *watcher) alertOf(j *incidentJob, i *incident.Incident) rules.Alert {
	a := rules.Alert{
		Name: j.finding.Rule, Key: j.finding.Cause, Since: j.finding.Since,
		Labels:      map[string]string{"cluster": v.systemID, "severity": "warning"},
		Annotations: map[string]string{"summary": j.finding.Summary},
	}
	a.Labels["instance"], _ = os.Hostname()
	if i != nil {
		a.Labels["instance"], a.Labels["cluster"], a.Annotations["incident"] = i.Host.Name, i.Server.SystemID, i.ID
	}
	return a
}

// remember reads the causes of recent incidents from their files and gives them to the engine, so that a restarted worker does not
// report them again.
func (v *watcher) remember() {
	control, err := cluster.ReadControl(v.worker.server().DataDir)
	if err != nil {
		return
	}
	v.systemID = control.ID()
	dir := incident.Dir{Path: incident.DirOf(v.worker.cfg.Record.Dir, control.ID())}
	list, err := dir.List()
	if err != nil {
		return
	}
	const most = 20
	now, oldest := time.Now(), v.engine.Config().Cooldown
	for _, e := range slices.Backward(list[max(0, len(list)-most):]) {
		i, err := dir.Read(e.ID)
		if err != nil {
			continue
		}
		age := now.Sub(i.Time)
		if age < 0 { // the clock was set back since
			continue
		}
		if age >= oldest {
			break
		}
		v.engine.Known(i.Reason.Cause, now.Add(-now.Sub(i.Time)))
	}
}

// HasRules reports whether the worker uses a file of rules.
func (c *RecordConfig) HasRules() bool { return c.To() != "" && c.Rules != "" && c.Rules != RulesOff }

// CheckRules reads the file of rules, if there is one. If the file has an error, the result wraps rules.ErrFile, with the line and
// the reason.
func (c *RecordConfig) CheckRules() error {
	if !c.HasRules() {
		return nil
	}
	if _, err := rules.Load(c.Rules); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// checkRules is CheckRules, but if Record.RulesOptional is set, it logs the error instead of returning it.
func (c *Config) checkRules() error {
	err := c.Record.CheckRules()
	if err != nil && c.Record.RulesOptional {
		c.Log.Error().Err(err).Msg("the built-in rules apply, without alerts: correct the file of rules, and send SIGHUP")
		return nil
	}
	return err
}

// wrongRules reports whether an error is about the file of rules.
func wrongRules(err error) bool { return errors.Is(err, rules.ErrFile) }
