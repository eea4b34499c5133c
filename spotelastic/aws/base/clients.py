"""Provides boto3 clients of one region, with deadlines and retries, and translates their errors.

boto3 is imported with the first client, so that importing this module costs nothing.
"""

import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from spotelastic_checkpoints.backoff import Backoff

from spotelastic import systems
from spotelastic.aws.base import slow_calls
from spotelastic.clock import Clock, steady
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable, UsageError

P = ParamSpec("P")
T = TypeVar("T")

BUSY = frozenset({"ServiceUnavailable", "Unavailable", "InternalError", "InternalFailure"})
"""Codes of answers that pass by themselves, besides those in botocore's own lists."""
LASTING = frozenset({"LimitExceededException"})
"""Codes that botocore sends again, but that do not pass: a limit of CloudFormation or of logs."""
TOO_MANY = 429
"""HTTP status of a throttled request."""
PRICING_REGION = "us-east-1"
"""The region whose Pricing API is used."""
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"})
_ADVICE = {
    "service control policy": (
        "a policy of your organization denies it, whatever these credentials may do: ask whoever "
        "keeps it what it demands (tags: --tag, a key: --kms-key, no public addresses: --vpc)"
    ),
    "resource control policy": (
        "a policy of your organization denies it: ask whoever keeps it what it demands"
    ),
    "permissions boundary": (
        "the permissions boundary of these credentials denies it: use others, or have it changed"
    ),
    "explicit deny": "a policy denies it, whatever others allow: it may demand tags (--tag)",
}
"""What to do, by what AWS names as the cause of a denial."""
EXPIRED = frozenset(
    {
        "400",  # what a HEAD of S3, which can say no more, answers to expired credentials
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        "AuthFailure",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
        "InvalidAccessKeyId",
    }
)

CLOCK = ("Signature expired", "Signature not yet current", "is later than", "is earlier than")
"""Words of AWS's messages about a request that was signed at another time than AWS's."""
SKEWED = frozenset({"RequestTimeTooSkewed", "RequestInTheFuture", "RequestExpired"})
"""Codes for the same."""
STRANGE = frozenset({"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException"})
"""Codes among `EXPIRED` that also come from a region which the account has not enabled."""
_ENCODED = re.compile(r"\.?\s*Encoded authorization failure message: \S+")
"""What EC2 adds for programs to a refusal."""
ENCRYPTION = {
    "ServerSideEncryption": "AWS_SERVER_SIDE_ENCRYPTION",
    "SSEKMSKeyId": "AWS_SSE_KMS_KEY_ID",
}
"""Parameters of calls that store objects, and the variables that hold them, as obstore reads."""
KNOWN_WITHIN = 60.0
"""Seconds until a new resource is known to all of AWS."""


class AwsSession(Protocol):
    """Makes the clients of AWS's services, as boto3's session does."""

    @property
    def region_name(self) -> str | None: ...

    @property
    def events(self) -> Any:
        """Botocore's hooks, which see every call of every client."""

    def client(self, service_name: str, *, region_name: str, config: Any) -> Any: ...

    def get_partition_for_region(self, region_name: str) -> str: ...


def _service(name: str) -> cached_property[Any]:
    return cached_property(lambda aws: aws.client(name))


class Aws:
    """The services of one region. Clients can be shared between threads; creating one cannot."""

    def __init__(
        self,
        region: str | None = None,
        *,
        account: str = "",
        read_timeout: float = 30.0,
        attempts: int = 4,
        session: AwsSession | None = None,
    ) -> None:
        """`account` is the account's number, if the caller knows it already.

        `session` makes the clients; by default it is one of boto3's. Each call is tried `attempts`
        times, with growing pauses, while AWS is busy.
        """
        self._region = region
        self._account = account
        self._read_timeout = read_timeout
        self._attempts = attempts
        self._given = session

    @cached_property
    def session(self) -> AwsSession:
        """The session that makes the clients; boto3's by default, created on first use."""
        if self._given is not None:
            return self._given
        import boto3

        made: AwsSession = boto3.session.Session(region_name=self._region)
        return made

    @property
    def region(self) -> str:
        """The region's name.

        Raises `EnvironmentFailure` if neither caller nor configuration names one.
        """
        region = self.session.region_name
        if not region:
            raise EnvironmentFailure(
                "no AWS region: give --region, set AWS_REGION, or run `aws configure`"
            )
        from botocore.exceptions import UnknownRegionError

        try:  # this tests the pattern of the name: boto3 may not list new regions
            self.session.get_partition_for_region(region)
        except UnknownRegionError:
            raise UsageError(f"--region {region}: AWS has no region of that name") from None
        return str(region)

    @cached_property
    def account(self) -> str:
        """The account's number, looked up with the credentials."""
        if self._account:
            return self._account
        with calling("find out which AWS account this is"):
            return str(self.sts.get_caller_identity()["Account"])

    @property
    def partition(self) -> str:
        """The partition in ARNs of the region: what follows "arn:"."""
        return str(self.session.get_partition_for_region(self.region))

    autoscaling = _service("autoscaling")
    cloudformation = _service("cloudformation")
    ec2 = _service("ec2")
    ecr = _service("ecr")
    events = _service("events")
    fis = _service("fis")
    iam = _service("iam")
    kms = _service("kms")
    logs = _service("logs")
    quotas = _service("service-quotas")
    sqs = _service("sqs")
    ssm = _service("ssm")
    sts = _service("sts")

    @cached_property
    def pricing(self) -> Any:
        """The Pricing API of us-east-1, which has the prices of all regions.

        It has short timeouts: a table replaces its answers, and not every network reaches it.
        """
        return self.client("pricing", PRICING_REGION, connect=1.0, read=2.0, attempts=1)

    @cached_property
    def s3(self) -> Any:
        """The S3 client, restricted to buckets of this account.

        Bucket names are global: a name that is free, or became free, may belong to another account.
        What is stored has the headers that the environment names: some buckets demand them.
        """
        owner, client = self.account, self.client("s3")

        def expect(params: dict[str, Any], model: Any, **_: Any) -> None:
            its = model.input_shape.members
            if "ExpectedBucketOwner" in its:
                params["ExpectedBucketOwner"] = owner
            for name, variable in ENCRYPTION.items():
                if name in its and (value := os.environ.get(variable)):
                    params.setdefault(name, value)

        client.meta.events.register("before-parameter-build.s3", expect)
        return client

    def sns(self, region: str) -> Any:
        """Return a client of the region that a topic is in."""
        return self.client("sns", region, read=10.0, attempts=1)

    def client(
        self,
        service: str,
        region: str = "",
        connect: float = 5.0,
        read: float | None = None,
        attempts: int | None = None,
    ) -> Any:
        """Return a new client; `connect` and `read` are its deadlines in seconds."""
        from botocore.config import Config

        config = Config(
            connect_timeout=connect,
            read_timeout=read or self._read_timeout,
            retries={"mode": "standard", "total_max_attempts": attempts or self._attempts},
            # A queue's long poll, the controller's calls and the publisher share a process.
            max_pool_connections=16,
        )
        with calling(f"use {service}"):
            return self.session.client(service, region_name=region or self.region, config=config)


def has_credentials() -> bool:
    """Whether AWS credentials are configured on this machine."""
    import boto3

    with calling("find AWS credentials"):
        return boto3.session.Session().get_credentials() is not None


class Rejected(EnvironmentFailure):
    """AWS refused a call; `code` is its error code, and `reason` what it says itself."""

    def __init__(self, message: str, code: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or message


class SignedOut(Rejected):
    """The credentials are invalid or expired: the user has to log in again."""


class Busy(Unavailable):
    """AWS could not answer at the moment; `code` is its error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def patient(
    passes: Callable[[Rejected | Busy], bool],
    *,
    clock: Clock = steady,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to be retried with back-off while its error `passes` by itself.

    After `KNOWN_WITHIN` seconds the error is raised.
    """

    def decorated(call: Callable[P, T]) -> Callable[P, T]:
        @wraps(call)
        def patiently(*args: P.args, **kwargs: P.kwargs) -> T:
            deadline, backoff = clock() + KNOWN_WITHIN, Backoff(0.05, 2.0, factor=1.5)
            while True:
                try:
                    return call(*args, **kwargs)
                except (Rejected, Busy) as error:
                    backoff = backoff.failed()
                    if clock() + backoff.bound > deadline or not passes(error):
                        raise
                sleep(backoff.bound)

        return patiently

    return decorated


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Translate boto3's errors into spotelastic's; `what` completes "cannot ..."."""
    from botocore import exceptions as boto

    try:
        with slow_calls.watched(what):
            yield
    except SpotelasticError:
        raise
    except boto.ClientError as error:
        raise _translated(what, error) from error
    except ended_session() as error:
        of_sso = isinstance(error, boto.SSOError | boto.TokenRetrievalError)
        how = " with `aws sso login`" if of_sso else ""
        raise SignedOut(f"cannot {what}: {error}: log in again{how}", "ExpiredToken") from error
    except EOFError as error:
        # botocore has asked for a one-time code, and there is no terminal to ask at.
        raise SignedOut(
            f"cannot {what}: the profile wants a one-time code (MFA), and there is no terminal to "
            "ask for it: log in beforehand, and use a profile of that session",
            "ExpiredToken",
        ) from error
    except (boto.ConnectionError, boto.HTTPClientError) as error:
        raise Unavailable(f"cannot {what}: {error}") from error
    except boto.BotoCoreError as error:
        told = wrong_configuration(error) or f"cannot {what}: {error}"
        raise EnvironmentFailure(" ".join(told.split())) from error
    except (OSError, ValueError, LookupError) as error:
        if told := _wrong_source(error):
            raise EnvironmentFailure(f"cannot {what}: {told}") from error
        if not isinstance(error, KeyError):
            raise
        raise Unavailable(f"cannot {what}: the answer lacks {error}: try again") from error


@contextmanager
def passing(*codes: str) -> Iterator[None]:
    """End the block where AWS refuses a call with one of these codes, which is no error.

    A code begins with what is given.
    """
    try:
        yield
    except Rejected as error:
        if not error.code.startswith(codes):
            raise


@contextmanager
def refusable(
    tell: Callable[[str], object] = str, *others: type[SpotelasticError]
) -> Iterator[None]:
    """End the block where AWS refuses a call, or it fails as one of `others`; `tell` hears why.

    Credentials that have ended are raised.
    """
    kinds: tuple[type[SpotelasticError], ...] = (Rejected, *others)
    try:
        yield
    except SignedOut:
        raise
    except kinds as error:
        tell(str(error))


def optional(tell: Callable[[str], object] = str) -> AbstractContextManager[None]:
    """End the block where AWS gives no answer: what is not known forbids nothing.

    These credentials may not ask, the region lacks the call, or its service cannot be reached.
    """
    return refusable(tell, Unavailable)


@contextmanager
def explained(why: SpotelasticError, *codes: str) -> Iterator[None]:
    """Raise `why` where AWS refuses a call with a code that begins so."""
    try:
        yield
    except Rejected as error:
        if not error.code.startswith(codes):
            raise
        raise why from error


def listed(client: Any, call: str, key: str, **asked: Any) -> Iterator[dict[str, Any]]:
    """Yield the items below `key` of all pages that a call answers."""
    for page in client.get_paginator(call).paginate(**asked):
        yield from page.get(key, ())


def listed_instances(aws: Aws, filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the instances that EC2 describes."""
    for reservation in listed(aws.ec2, "describe_instances", "Reservations", Filters=filters):
        yield from reservation["Instances"]


def ended_session() -> tuple[type[Exception], ...]:
    """Return botocore's errors for a login that has ended or cannot be renewed without the user.

    Older versions of botocore have fewer of them.
    """
    from botocore import exceptions as boto

    names = ("RefreshWithMFAUnsupportedError", "CredentialRetrievalError", "LoginError")
    found = (getattr(boto, name, None) for name in names)
    return (boto.SSOError, boto.TokenRetrievalError, *(each for each in found if each))


def wrong_configuration(error: Exception) -> str | None:
    """Return what is wrong with this machine's AWS configuration; None for any other error."""
    from botocore import exceptions as boto

    match error:
        case boto.NoCredentialsError():
            ways = ", set AWS_PROFILE, or use --local"
            if not systems.has_linux():
                ways = ", or set AWS_PROFILE"
            return f"no AWS credentials; run `aws configure`{ways}"
        case boto.PartialCredentialsError():
            return f"AWS credentials are incomplete: {error}"
        case boto.ProfileNotFound():
            named = (
                name for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE") if os.environ.get(name)
            )
            setting = next(named, "AWS_PROFILE")
            return (
                f"{setting}={os.environ.get(setting, '')}: AWS's configuration has no such "
                "profile; `aws configure list-profiles` lists them"
            )
        case boto.NoRegionError():
            return "no AWS region: give --region, set AWS_REGION, or run `aws configure`"
        case boto.ConfigParseError() | boto.ConfigNotFound() | boto.InvalidConfigError():
            return f"AWS's configuration: {error}"
        case boto.UnknownCredentialError():
            return f"AWS credentials: {error}"
    return None


def _wrong_source(error: Exception) -> str:
    """Return what is wrong where the configuration has credentials or an endpoint come from.

    Empty for any other error. botocore lets those of Python pass where a helper
    (`credential_process`) or a file with a token is missing, or holds something else.
    """
    source = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        where = frame.f_globals.get("__name__"), frame.f_code.co_name
        if where == ("botocore.endpoint", "create_endpoint"):
            return f"{error} (AWS_ENDPOINT_URL, or endpoint_url in AWS's configuration)"
        if where[0] == "botocore.credentials":
            its = getattr(frame.f_locals.get("self"), "METHOD", "")
            source = f" of {its}" if its else source or " "
    if not source:
        return ""
    return f"AWS credentials{source.rstrip()}: {error}: `aws sts get-caller-identity` has to work"


def _translated(what: str, error: Any) -> SpotelasticError:
    details = error.response.get("Error", {})
    code = str(details.get("Code", ""))
    message = str(details.get("Message", "")) or str(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status == TOO_MANY or status >= 500 or code in BUSY or _is_retryable(code, error):
        return Busy(f"cannot {what}: AWS is busy ({code}: {message}): try again in a minute", code)
    if code in SKEWED or any(words in message for words in CLOCK):
        return SignedOut(
            f"cannot {what}: this machine's clock differs from AWS's ({message}): set it right",
            code,
        )
    if code in EXPIRED and not (code == "AuthFailure" and "credentials" not in message):
        elsewhere = ", or the region is not enabled for this account" if code in STRANGE else ""
        return SignedOut(
            f"cannot {what}: {message}: the AWS credentials are invalid or expired: log in again"
            f"{elsewhere}",
            code,
        )
    if code in DENIED:
        reason = _ENCODED.sub("", message)
        told = f"cannot {what}: not permitted ({reason}): {advice(reason)}"
        return Rejected(told, code, reason)
    return Rejected(f"cannot {what}: {message} ({code})", code, message)


def advice(denial: str) -> str:
    """Return what to do about a denial, in AWS's words."""
    ways = (way for word, way in _ADVICE.items() if word in denial)
    return next(ways, "see docs/reference/permissions.md for what is needed")


def _is_retryable(code: str, error: Any) -> bool:
    """Whether botocore itself would send the request again: it is throttled, or was lost."""
    if code in LASTING:
        return False
    from botocore.retries import standard

    context = standard.RetryContext(1, parsed_response=error.response, caught_exception=error)
    checkers = (standard.ThrottledRetryableChecker(), standard.TransientRetryableChecker())
    return any(checker.is_retryable(context) for checker in checkers)
