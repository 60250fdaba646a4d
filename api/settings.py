"""Settings of the HTTP floor: where it listens and what it refuses before it costs anything."""

from pydantic import Field

from stratakv.storage.settings import SettingsModel, Size, parse_size


class ApiSettings(SettingsModel):
    """One gateway's HTTP side. Limits hold per gateway process."""

    host: str = Field("127.0.0.1", description="interface to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    max_body: Size = Field(parse_size("8MiB"), ge=1, description="largest request body")
    body_timeout: float = Field(30.0, gt=0, description="seconds a client may take to send its body")
    max_prompt_characters: int = Field(
        4 * 2**20, ge=1, description="longest prompt, in characters, that is tokenised at all"
    )
    max_requests: int = Field(1024, ge=1, description="completions at once; more are refused with 429")
    delta_timeout: float = Field(
        600.0, gt=0, description="seconds without a word from the replica after which a request is given up"
    )
    tokenizer_timeout: float = Field(
        60.0, gt=0, description="seconds a request waits for the tokenizer to load"
    )
    token_map_memory: Size = Field(
        parse_size("256MiB"), description="memory of the token map over all tenants; 0 turns it off"
    )
    token_map_tenant_memory: Size = Field(
        parse_size("64MiB"), description="memory of the token map that one tenant may take"
    )
    explain_timeout: float = Field(
        30.0, gt=0, description="seconds that /v1/explain waits for replicas, which answer between two steps"
    )
    explain_prompts: int = Field(
        256,
        ge=0,
        description="latest histories that a gateway remembers to say where a prompt parts from them",
    )
    explain_memory: Size = Field(parse_size("32MiB"), description="memory of these histories")
