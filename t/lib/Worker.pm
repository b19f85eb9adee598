# The worker of a test's server, and functions that query it and the processes that it captures. Nothing here sleeps
# for a fixed time: conditions are polled until a deadline.
package Worker;

use strict;
use warnings;

use Carp qw(croak);
use Exporter qw(import);
use IPC::Run;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

our @EXPORT_OK = qw($FRAME call proc_status wait_until backend_pid children cmdline);

# One frame, in the documented format.
our $FRAME = qr/^#\d+\s+0x[0-9a-f]{16}\s+in\s+\S+\+0x[0-9a-f]+/m;

# The running workers by pid, so that a test that dies also ends them.
my %running;
END { kill 'KILL', keys %running }

my $deadline = $PostgreSQL::Test::Utils::timeout_default;

# Worker->start($node, args => [...], ready => 0|1) starts the worker for a server, and by default waits until it is
# ready. PGSB_PROGRAM is the path of the program.
sub start
{
	my ($class, $node, %opts) = @_;
	my $program = $ENV{PGSB_PROGRAM} or croak 'PGSB_PROGRAM does not name the program to test';
	my @args = @{ $opts{args} // [ $node->connstr('postgres') . ' user=' . superuser() ] };
	my $log  = $PostgreSQL::Test::Utils::log_path . '/' . $node->name . "_worker_$$.log";
	my $self = bless { node => $node, log => $log, pidfile => $node->data_dir . '/pg_stat_backtrace.pid' }, $class;

	$self->{log_start} = -s $log // 0;
	$self->{run} = IPC::Run::start([ $program, 'worker', @args ], '<', \undef, '>>', $log, '2>>', $log);
	$self->{pid} = $self->{run}->{KIDS}[0]{PID};
	$running{ $self->{pid} } = 1;
	$self->wait_ready unless defined $opts{ready} && !$opts{ready};
	return $self;
}

# superuser returns the role that initdb made: the operating system's user.
sub superuser { return scalar getpwuid($<) }

sub pid { return $_[0]{pid} }
sub pidfile { return $_[0]{pidfile} }

# log returns the text that this worker has logged.
sub log
{
	my ($self) = @_;
	return substr(slurp_file($self->{log}), $self->{log_start});
}

# wait_ready waits until the worker has written its pid file, and has the session that it needs to answer ordinary roles.
sub wait_ready
{
	my ($self) = @_;
	wait_until(
		'the worker to be ready',
		sub {
			croak "the worker ended instead of starting:\n" . $self->log unless $self->running;
			return -e $self->{pidfile} && slurp_file($self->{pidfile}) =~ /\b$self->{pid}\b/ && $self->log =~ /"connected"/;
		});
	return;
}

sub running
{
	my ($self) = @_;
	return 0 unless $self->{run};
	my %status = proc_status($self->{pid});
	return defined $status{State} && $status{State} ne 'Z' ? 1 : 0;
}

# stop ends the worker as a service manager does, and returns its exit status.
sub stop
{
	my ($self, $signal) = @_;
	return unless $self->{run};
	kill $signal // 'TERM', $self->{pid};
	return $self->finish;
}

# finish waits for the worker to end. It returns its exit status, or -1 if a signal ended it.
sub finish
{
	my ($self) = @_;
	wait_until('the worker to end', sub { !$self->running });
	my $run = delete $self->{run};
	eval { $run->finish };
	delete $running{ $self->{pid} };
	my $status = $run->full_result;
	return $status & 127 ? -1 : $status >> 8;
}

sub DESTROY
{
	my ($self) = @_;
	return unless $self->{run};
	local ($?, $@);
	kill 'KILL', $self->{pid};
	eval { $self->{run}->finish };
	delete $running{ $self->{pid} };
	return;
}

# $worker->suspend stops the worker, and returns when it has stopped. Until then it might answer.
sub suspend
{
	my ($self) = @_;
	kill 'STOP', $self->{pid};
	wait_until('the worker to stand still', sub { my %s = proc_status($self->{pid}); ($s{State} // '') eq 'T' });
	return;
}

# $worker->cold_backup($node, $name) copies the files of the stopped server while the worker runs. PostgreSQL::Test
# cannot copy the worker's symbolic link there.
sub cold_backup
{
	my ($self, $node, $name) = @_;
	$self->suspend;
	unlink $node->data_dir . '/pg_stat_tmp/pg_stat_backtrace';
	$node->backup_fs_cold($name);
	kill 'CONT', $self->{pid};
	return;
}

# spool returns the directory through which calls reach this worker: the absolute path in the pid file that is not the
# data directory.
sub spool
{
	my ($self) = @_;
	my $data = $self->{node}->data_dir;
	for my $path (slurp_file($self->{pidfile}) =~ m{(/[^\s"]+)}g)
	{
		return $path if -d $path && (stat $path)[1] != (stat $data)[1];
	}
	croak 'no spool directory in ' . slurp_file($self->{pidfile});
}

# call($node, $sql, role => ..., db => ...) runs SQL and returns (stdout, level, SQLSTATE, stderr); the level is
# ERROR, WARNING or ''.
sub call
{
	my ($node, $sql, %opts) = @_;
	my @user = $opts{role} ? ('-U', $opts{role}) : ();
	my ($rc, $stdout, $stderr) = $node->psql(
		$opts{db} // 'postgres', $sql,
		on_error_stop => 1,
		timeout       => $deadline,
		extra_params  => [ '-v', 'VERBOSITY=verbose', @user ]);
	my ($level, $state) = $stderr =~ /\b(ERROR|FATAL|WARNING):\s+([0-9A-Z]{5}):/;
	return ($stdout // '', $level // '', $state // '', $stderr // '');
}

# proc_status($pid) returns fields of /proc/PID/status. State is the letter alone. The result is empty if there is no
# such process.
sub proc_status
{
	my ($pid) = @_;
	open my $fh, '<', "/proc/$pid/status" or return ();
	my %fields = map { /^(\w+):\s*(.*?)\s*$/ ? ($1, $2) : () } <$fh>;
	close $fh;
	$fields{State} = substr($fields{State}, 0, 1) if defined $fields{State};
	return %fields;
}

# wait_until($what, $condition): polls.
sub wait_until
{
	my ($what, $condition) = @_;
	my $end = time + $deadline;
	until ($condition->())
	{
		croak "timed out waiting for $what" if time > $end;
		usleep(10_000);
	}
	return 1;
}

# backend_pid($session): the server process of a background psql.
sub backend_pid
{
	my ($session) = @_;
	my ($pid) = $session->query('SELECT pg_backend_pid()') =~ /(\d+)/;
	return $pid;
}

# cmdline($pid) returns /proc/PID/cmdline; '' when there is no such process.
sub cmdline
{
	my ($pid) = @_;
	open my $fh, '<', "/proc/$pid/cmdline" or return '';
	local $/ = undef;
	my $text = <$fh>;
	close $fh;
	return $text // '';
}

# children($pid) returns the process ids whose parent is $pid.
sub children
{
	my ($parent) = @_;
	my @found;
	opendir my $dir, '/proc' or croak "/proc: $!";
	for my $pid (grep { /^\d+$/ } readdir $dir)
	{
		my %status = proc_status($pid);
		push @found, $pid if defined $status{PPid} && $status{PPid} == $parent;
	}
	closedir $dir;
	return sort { $a <=> $b } @found;
}

1;
