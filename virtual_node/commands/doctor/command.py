"""``virtual-node doctor``: finds the broken link of a running installation whose pods are all pending.

Checks the chain by which a pod gets from the upper API to a running container in a lower cluster. Changes
nothing, because the only pod that it creates is a server-side dry run.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import add_flag
from virtual_node.commands.common import connect, output
from virtual_node.commands.doctor import reading
from virtual_node.commands.doctor.chain import CHAIN, examine, first_broken, holds, sentence
from virtual_node.commands.doctor.facts import DoctorFacts, LowerFacts
from virtual_node.commands.doctor.links import Link, State
from virtual_node.config import program
from virtual_node.examine.probes import Probe

_AGENT = "virtual-node-doctor"
_COLUMNS = ("LINK", "STATE", "DETAIL", "NEXT")
_MARKS = {
    State.OK: output.GOOD,
    State.BROKEN: output.BAD,
    State.SKIPPED: output.NOTHING,
    State.UNKNOWN: output.DOUBTFUL,
}


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 when all links hold, 1 when a link is broken or could not be seen.

    Raises:
        ConfigError: the upper cluster's kubeconfig cannot be used; exit code 2.
    """
    options = parser().parse_args(argv)
    links = [link for link in examine(asyncio.run(_read(options))) if link.name not in options.ignore]
    broken = first_broken(links)
    if options.output == "table" and options.quiet:
        wrong = [one for one in links if one.state not in {State.OK, State.SKIPPED}]
        output.brief([(one.title, one.state.value, one.detail, one.next) for one in wrong])
        output.conclusion(sentence(links))
    elif options.output == "table":
        _print(links, headers=not options.no_headers)
    else:
        rows = [
            {"name": one.name, "state": one.state.value, "detail": one.detail, "next": one.next}
            for one in links
        ]
        output.data({"brokenLink": broken.name if broken else None, "links": rows}, options.output)
    return 0 if holds(links) else 1


async def _read(options: argparse.Namespace) -> DoctorFacts:
    config = await kubeconfig.load(options.kubeconfig, context=options.context)
    timeout = options.request_timeout
    async with Client(config, user_agent=_AGENT, cluster="upper", timeout=timeout) as upper:
        above, lower = await asyncio.gather(
            reading.read_upper(upper, namespace=options.namespace),
            asyncio.gather(*(_below(file, options) for file in options.client_kubeconfig)),
        )
        domain = await reading.read_domain(upper) if lower and above.answer.ok else ""
    trouble = None
    if not above.answer.ok:
        error = ApiError(above.answer.text, code=above.answer.code)
        trouble = connect.explain(
            error, config, path=options.kubeconfig, context=options.context, in_cluster=True
        )
    return dataclasses.replace(above, lower=lower, domain=domain, trouble=trouble)


async def _below(file: str, options: argparse.Namespace) -> LowerFacts:
    """Return what was read of a lower cluster; an unusable kubeconfig does not stop the other clusters."""
    try:
        async with connect.by_file(file, agent=_AGENT, timeout=options.request_timeout) as client:
            return await reading.read_lower(client, file)
    except ConfigError as error:
        return LowerFacts(file, Probe(0, str(error)), usable=False)


def _print(links: Sequence[Link], *, headers: bool) -> None:
    output.report(
        _COLUMNS,
        [(one.title, one.state.value, one.detail, one.next) for one in links],
        [output.Entry(_MARKS[one.state], one.title, [one.detail], [one.next]) for one in links],
        headers=headers,
    )
    output.conclusion(sentence(links))


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "doctor",
        about="Find why pods stay pending. Checks the chain by which a pod gets from the upper API to a "
        "running container "
        "in a lower cluster, and names its first broken link. Changes nothing: the one pod that it creates is a "
        "server-side dry run.",
        examples=(
            ("With data of the upper cluster only", "doctor"),
            (
                "With data of two lower clusters",
                "doctor --client-kubeconfig tokyo.yaml --client-kubeconfig paris.yaml",
            ),
            ("The broken link's name, for a script", "doctor -o json"),
        ),
        exit_codes="0 all links hold, 1 one is broken or could not be seen, 2 usage, or no usable kubeconfig",
    )
    connect.add_flags(own)
    own.add_argument(
        "--client-kubeconfig",
        default=[],
        action="append",
        metavar="FILE",
        help="kubeconfig of a lower cluster, to read it too; may be given more than once",
    )
    add_flag(
        own,
        "-n --namespace NS",
        "namespace in which a labelled pod is created as a dry run (default)",
        type=connect.label,
        default="default",
    )
    output.add_flags(own, "table", *output.DATA)
    output.add_quiet(own)
    own.add_argument(
        "--ignore",
        default=[],
        action="append",
        choices=[rule.name for rule in CHAIN],
        metavar="LINK",
        help="omit a link from the verdict, by its name in the output of -o json; may be given more than once. "
        "`helm test` ignores capacity, scheduled, lowerVerdict and swarms: pods of users that do not run",
    )
    return own
