# Many concurrent callers: all for one process, each for another process, and for each other.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Worker qw(proc_status backend_pid);

my $callers = 8;
my $calls   = 50;

my $node = PostgreSQL::Test::Cluster->new('concurrent');
$node->init;
$node->append_conf('postgresql.conf', 'max_connections = 50');
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_backtrace');
my $worker = Worker->start($node);

my @targets = map { $node->background_psql('postgres') } 1 .. $callers;
my @pids    = map { backend_pid($_) } @targets;

# together($query for each caller): run the queries at the same time; returns [stdout, stderr] of each.
sub together
{
	my @runs = map {
		my ($out, $err) = ('', '');
		my $answer = [ \$out, \$err ];
		push @$answer, IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr('postgres'), '-c', $_ ],
			'<', \undef, '>', \$out, '2>', \$err);
		$answer;
	} @_;
	$_->[2]->finish for @runs;
	return map { [ ${ $_->[0] }, ${ $_->[1] } ] } @runs;
}

sub captures_of { return "SELECT count(pg_get_backtrace($_[0])) FROM generate_series(1, $calls)" }

sub all_answered
{
	my ($what, @answers) = @_;
	is(scalar(grep { $_->[0] eq "$calls\n" } @answers), $callers, "$what: $callers callers have $calls stacks each");
	is(join('', map { $_->[1] } @answers), '', "$what: no error, no warning");
	for my $pid (@pids)
	{
		my %status = proc_status($pid);
		is($status{TracerPid}, 0, "$what: $pid is not traced afterwards");
		unlike($status{State}, qr/t/i, "$what: $pid is not stopped afterwards");
	}
	return;
}

all_answered('one target', together((captures_of($pids[0])) x $callers));
all_answered('distinct targets', together(map { captures_of($_) } @pids));

# All callers capture all processes, one another included.
my @all = together(
	("SELECT count(pg_get_backtrace(pid)) > 0 FROM pg_stat_activity, generate_series(1, 5)
	  WHERE pid <> pg_backend_pid()") x $callers);
# A caller may end before another one has its stack. That gives a warning or 55000.
is(scalar(grep { $_->[0] eq "t\n" || $_->[1] =~ /ERROR:\s+55000/ } @all),
	$callers, 'callers that look at one another all have answers')
  or diag(map { $_->[1] } @all);
my @states = map { $_->[1] =~ /ERROR:\s+(\w{5})/g } @all;
is(scalar(grep { $_ ne '55000' } @states), 0, 'and no error but a target that has ended');

is($_->query('SELECT 1'), '1', 'a target still answers') for @targets;
$_->quit for @targets;
$worker->stop;
$node->stop;
done_testing();
