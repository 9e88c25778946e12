# /// script
# dependencies = ["diffusers==0.42.1", "transformers==5.23.0", "accelerate==1.15.0", "numpy", "safetensors"]
# ///
"""diffusers: UNet and DiT pipelines with random weights, a VAE, schedulers, a training step, files."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import diffusers as df
import torch
from _cases import case, main


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def unet(**more):
    sizes = {"sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return df.UNet2DModel(**sizes, **blocks, attention_head_dim=8, **more)


def condition_unet():
    return df.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )


def vae():
    return df.AutoencoderKL(
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    )


def text_encoder():
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return CLIPTextModel(CLIPTextConfig(**sizes, num_attention_heads=2, max_position_embeddings=16)).eval()


@case
def ddpm_pipeline():
    pipe = df.DDPMPipeline(unet(), df.DDPMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    return pipe(batch_size=2, generator=generator(), num_inference_steps=4, output_type="np").images


@case
def ddim_pipeline():
    pipe = df.DDIMPipeline(unet(), df.DDIMScheduler(num_train_timesteps=20))
    pipe.set_progress_bar_config(disable=True)
    return pipe(batch_size=1, generator=generator(), num_inference_steps=4, eta=0.5, output_type="np").images


@case
def stable_diffusion():
    """Text conditions given as embeddings, guidance, PNDM, and the VAE's decoder."""
    pipe = df.StableDiffusionPipeline(
        vae=vae().eval(),
        text_encoder=text_encoder(),
        tokenizer=None,
        unet=condition_unet().eval(),
        scheduler=df.PNDMScheduler(skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    ids = torch.arange(8).view(1, 8)
    with torch.no_grad():
        words, none = pipe.text_encoder(ids)[0], pipe.text_encoder(ids * 0)[0]
    return pipe(
        prompt_embeds=words,
        negative_prompt_embeds=none,
        height=16,
        width=16,
        num_inference_steps=3,
        generator=generator(),
        output_type="np",
    ).images


@case
def dit_pipeline():
    transformer = df.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1001,
        norm_num_groups=4,
    )
    with torch.no_grad():
        for p in transformer.parameters():
            p.add_(0.02)
    pipe = df.DiTPipeline(transformer.eval(), vae().eval(), df.DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe([1, 3], num_inference_steps=3, generator=generator(), output_type="np").images


@case
def training_step():
    model, schedule = unet(), df.DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    clean, losses = torch.randn(4, 3, 16, 16), []
    for _ in range(3):
        noise, at = torch.randn_like(clean), torch.randint(0, 50, (4,))
        out = model(schedule.add_noise(clean, noise, at), at).sample
        loss = torch.nn.functional.mse_loss(out, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    average = df.training_utils.EMAModel(model.parameters(), decay=0.9)
    average.step(model.parameters())
    return losses


@case
def autoencoder_step():
    model = vae()
    x = torch.randn(2, 3, 16, 16)
    latent = model.encode(x).latent_dist
    out = model.decode(latent.sample(generator())).sample
    loss = (out - x).square().mean() + 1e-3 * latent.kl().mean()
    loss.backward()
    return out, loss, model.encoder.conv_in.weight.grad, latent.mode()


SCHEDULERS = (
    "DDIMScheduler", "DDPMScheduler", "DEISMultistepScheduler", "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler", "EulerAncestralDiscreteScheduler", "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler", "HeunDiscreteScheduler", "KDPM2DiscreteScheduler", "LCMScheduler",
    "PNDMScheduler", "SASolverScheduler", "UniPCMultistepScheduler",
)  # fmt: skip


@case
def schedulers():
    out = {}
    for name in SCHEDULERS:
        schedule = getattr(df, name)()
        schedule.set_timesteps(5)
        draws, x = generator(), torch.linspace(-1, 1, 48).view(1, 3, 4, 4)
        for at in schedule.timesteps:
            if hasattr(schedule, "scale_model_input"):
                scaled = schedule.scale_model_input(x, at)
            else:
                scaled = x
            taken = schedule.step(
                torch.tanh(scaled),
                at,
                x,
                **({"generator": draws} if "generator" in schedule.step.__code__.co_varnames else {}),
            )
            x = taken.prev_sample
        out[name] = x, schedule.timesteps
    return out


@case
def saved_and_loaded():
    with tempfile.TemporaryDirectory() as folder:
        first = df.DDPMPipeline(unet(), df.DDPMScheduler(num_train_timesteps=20))
        first.save_pretrained(folder)
        pipe = df.DDPMPipeline.from_pretrained(folder)
        files = sorted(os.listdir(folder))
    x = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        return pipe.unet(x, 3).sample, first.unet(x, 3).sample, files


@case
def transformers_of_newer_kinds():
    """A PixArt, an SD3 and a Flux transformer, and a ControlNet."""
    torch.manual_seed(1)
    sd3 = df.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        caption_projection_dim=16, joint_attention_dim=16, pooled_projection_dim=8, out_channels=4,
    )  # fmt: skip
    flux = df.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=8, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    out = []
    words, pooled = torch.randn(1, 5, 16), torch.randn(1, 8)
    out.append(sd3(torch.randn(1, 4, 8, 8), words, pooled, torch.tensor([3])).sample)
    ids = torch.zeros(16, 3)
    ids[:, 1] = torch.arange(16) // 4
    ids[:, 2] = torch.arange(16) % 4
    out.append(flux(torch.randn(1, 16, 4), words, pooled, torch.tensor([0.5]), ids, torch.zeros(5, 3)).sample)
    control = df.ControlNetModel.from_unet(condition_unet())
    down, mid = control(torch.randn(1, 4, 8, 8), 3, words, torch.randn(1, 3, 64, 64), return_dict=False)
    out += [mid, *down]
    sum(o.square().mean() for o in out).backward()
    return out, flux.x_embedder.weight.grad


if __name__ == "__main__":
    main()
